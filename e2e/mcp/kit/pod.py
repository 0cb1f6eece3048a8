"""A pod's worth of processes outside of one: the sidecar's binary, and a shim per MCP server."""

import http.client
import http.server
import json
import os
import threading

from outrigger_kit.processes import ADMIN_PORT, LOCAL_PORT, Processes

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


class Pod(Processes):
    """Started on entry, ended on exit; `servers` are commands by name, and `http` has the port and path of those that need no shim.
    Its ports are those of every sidecar: one at a time. `dead` says why of servers in a crash loop, and of those that are still not ready in the end."""

    def __init__(self, name, servers, http=None):
        super().__init__(name, os.environ["MCP_LOGS"], "mcp-", START, STOP)
        self.servers, self.http = servers, http or {}
        self.ready, self.dead = None, {}

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

    def launch(self):
        self.site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
        threading.Thread(target=self.site.serve_forever, daemon=True).start()
        folders = [f"run/outrigger/tools/{name}" for name in self.servers]
        for folder in folders:
            (self.root / folder).mkdir(parents=True)
        for name, command in self.servers.items():
            env = {"OUTRIGGER_SOCKET": str(self.socket(name)), "OUTRIGGER_MAX_PROCESSES": str(MAX_PROCESSES)}
            shim = [] if name in self.http else [os.environ["OUTRIGGER_SHIM"], "--"]
            self.start(name, [*shim, *command], **env)
        card = {"name": "mcp", "description": "Has tools", "version": "1.0.0", "skills": []}
        live = {"version": 1, "card": card}
        self.start_sidecar(self.boot(self.site.server_port), live, ("run/outrigger/agent", "skills"))
        missing = self.until(self.not_yet)
        if missing and self.ready != 200:
            raise self.not_ready(missing)

    def not_yet(self):
        self.ready = None
        ready, _ = get(ADMIN_PORT, "/readyz")
        servers = json.loads(get(ADMIN_PORT, "/status")[1])["servers"]
        self.ready, self.dead = ready, {s["name"]: s.get("message") or s["phase"] for s in servers if not s["ready"]}
        looping = {s["name"] for s in servers if s["phase"] == "CrashLoop"}
        waited_for = self.dead.keys() - looping
        return None if ready == 200 and not waited_for else self.dead or f"/readyz says {ready}"

    def __exit__(self, *_):
        self.site.shutdown()
        super().__exit__()

    def url(self, server):
        return f"http://127.0.0.1:{LOCAL_PORT}{self.local()}/mcp/{server}"
