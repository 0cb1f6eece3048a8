"""A receiver of push notifications: keeps what comes, and lets in only who has the credentials it was told of."""

import http.server
import json
import threading
import time


class Hook:
    """Paths are the names of receivers: `/{name}` with the `Authorization` it wants, if any."""

    def __init__(self):
        self.seen, self.wanted, self.changed = {}, {}, threading.Condition()
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(hook.take(self.path, dict(self.headers.items()), body))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, name, wants=None):
        self.wanted[f"/{name}"] = wants
        return f"http://127.0.0.1:{self.server.server_port}/{name}"

    def take(self, path, headers, body):
        headers = {k.lower(): v for k, v in headers.items()}
        if self.wanted.get(path) not in (None, headers.get("authorization")):
            return 401
        with self.changed:
            self.seen.setdefault(path, []).append((headers, json.loads(body)))
            self.changed.notify_all()
        return 200

    def wait(self, name, holds, seconds=20):
        """What came for `name`, once `holds` of the list."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while not holds(self.seen.get(f"/{name}", [])):
                if not self.changed.wait(max(0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise AssertionError(f"{name} got only {self.seen.get(f'/{name}', [])}")
            return list(self.seen[f"/{name}"])
