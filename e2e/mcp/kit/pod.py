"""A pod's worth of processes outside of one: the sidecar's binary, and a shim per MCP server."""

import http.client
import http.server
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time

ADMIN_PORT, LOCAL_PORT = 19464, 19900
START, STOP, PATIENCE = 40, 20, 10
MAX_PROCESSES = 64


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Site(http.server.BaseHTTPRequestHandler):
    """What stands for the agent, and a page for servers that fetch."""

    def do_GET(self):
        body = b"<html><head><title>Outrigger</title></head><body><p>A canoe with an outrigger.</p></body></html>"
        found = not self.path.startswith("/robots.txt")
        self.send_response(200 if found else 404)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Pod:
    """Started on entry, ended on exit; `servers` are commands by name, and `http` has the port and path of those that need no shim.
    Its ports are those of every sidecar: one at a time."""

    def __init__(self, name, servers, http=None):
        self.name, self.servers, self.http = name, servers, http or {}
        self.logs = pathlib.Path(os.environ["MCP_LOGS"])
        self.children, self.dead = [], {}

    def start(self, name, command, **env):
        log = open(self.logs / f"{self.name}-{name}.log", "w")
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | env)
        self.children.append((name, child))

    def write(self, path, document):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))

    def boot(self, site):
        containers = {name: f"tool-{name}" for name in self.servers}
        return {
            "version": 1,
            "agent": {"name": "mcp", "namespace": "default"},
            "runtime": {"http": {"port": site, "path": "/"}},
            "containers": ["agent", *containers.values()],
            "servers": [
                {
                    "name": name,
                    "reach": self.reach(name, container),
                    "required": False,
                    "process": {"maxProcesses": MAX_PROCESSES},
                    "era": "Auto",
                }
                for name, container in containers.items()
            ],
            "drain": {"token": "conformance-conformance", "graceSeconds": 10},
        }

    def reach(self, name, container):
        if name in self.http:
            return {"http": {"container": container} | self.http[name]}
        return {"stdio": {"container": container, "socket": str(self.socket(name))}}

    def socket(self, name):
        return self.root / f"run/outrigger/tools/{name}/shim.sock"

    def __enter__(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="mcp-"))
        self.site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
        threading.Thread(target=self.site.serve_forever, daemon=True).start()
        card = {"name": "mcp", "description": "Has tools", "version": "1.0.0", "skills": []}
        self.write("etc/outrigger/boot/boot.json", self.boot(self.site.server_port))
        self.write("etc/outrigger/live/live.json", {"version": 1, "card": card})
        for folder in ("run/outrigger/agent", "skills", *(f"run/outrigger/tools/{name}" for name in self.servers)):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        try:
            for name, command in self.servers.items():
                env = {"OUTRIGGER_SOCKET": str(self.socket(name)), "OUTRIGGER_MAX_PROCESSES": str(MAX_PROCESSES)}
                shim = [] if name in self.http else [os.environ["OUTRIGGER_SHIM"], "--"]
                self.start(name, [*shim, *command], **env)
            self.start("sidecar", [os.environ["OUTRIGGER_BIN"], "run", "--root", str(self.root)])
            self.until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def until_ready(self):
        """Waits for the sidecar and its servers. `dead` says why of those in a crash loop, and those that are still not ready in the end."""
        deadline, ready, last = time.monotonic() + START, None, "no answer"
        while time.monotonic() < deadline:
            for name, child in self.children:
                if child.poll() is not None:
                    raise RuntimeError(f"{name} ended with {child.returncode}: {self.tail(name)}")
            try:
                ready, _ = get(ADMIN_PORT, "/readyz")
                servers = json.loads(get(ADMIN_PORT, "/status")[1])["servers"]
                last = {s["name"]: s.get("message") or s["phase"] for s in servers if not s["ready"]}
                looping = {s["name"] for s in servers if s["phase"] == "CrashLoop"}
                if ready == 200 and not last.keys() - looping:
                    break
            except OSError as error:
                ready, last = None, str(error)
            time.sleep(0.02)
        if ready != 200:
            raise RuntimeError(f"the sidecar is not ready after {START} s: {last}; {self.tail('sidecar')}")
        self.dead = last

    def url(self, server):
        token = (self.root / "run/outrigger/agent/token").read_text().strip()
        return f"http://127.0.0.1:{LOCAL_PORT}/t/{token}/mcp/{server}"

    def tail(self, name):
        return (self.logs / f"{self.name}-{name}.log").read_text(errors="replace")[-2000:]

    def __exit__(self, *_):
        forced = []
        for name, child in reversed(self.children):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
            try:
                child.wait(STOP)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                forced.append(name)
        self.site.shutdown()
        shutil.rmtree(self.root, ignore_errors=True)
        if forced:
            raise RuntimeError(f"did not end on SIGTERM: {', '.join(forced)}")
