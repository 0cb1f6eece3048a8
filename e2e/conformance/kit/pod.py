"""A pod's worth of processes outside of one: the sidecar's binary with its two documents, and the scripted agent."""

import os
import pathlib
import subprocess
import sys
import time

from outrigger_kit.processes import ADMIN_PORT, Processes

from . import wire

HERE = pathlib.Path(__file__).resolve().parent.parent
AGENT_PORT = 8000
START, STOP = 30, 15

CARD = {
    "name": "conformance",
    "description": "Does what the text of a message says",
    "version": "1.0.0",
    "provider": {"organization": "Outrigger", "url": "https://outrigger.dev"},
    "defaultInputModes": ["text/plain", "application/json", "application/octet-stream"],
    "defaultOutputModes": ["text/plain", "application/json"],
    "skills": [{"id": "act", "name": "Act", "description": "Acts by a script", "tags": ["test"], "examples": ["tck-complete-task"]}],
}


def live(**members):
    """A live document; `members` replace or, where both are objects, add to what is usual here."""
    document = {
        "version": 1,
        "card": CARD,
        "offer": {
            "url": f"http://{wire.HOST}:{wire.PORT}",
            "grpc": f"{wire.HOST}:{wire.PORT}",
            "streaming": True,
            "checkInputModes": True,
        },
        "push": {"enabled": True, "allow": ["127.0.0.0/8"]},
    }
    for name, value in members.items():
        both = isinstance(value, dict) and isinstance(document.get(name), dict)
        document[name] = {**document[name], **value} if both else value
    return document


class Pod(Processes):
    """Started on entry, ended on exit. Its ports are those of every sidecar, so one at a time in a network namespace."""

    may_need_killing = ("agent",)

    def __init__(self, document, name, runtime=None, store=None, agent=None):
        super().__init__(name, os.environ["CONFORMANCE_LOGS"], "conformance-", START, STOP)
        self.document = document
        self.agent = agent or [sys.executable, "-u", str(HERE / "agent.py"), str(AGENT_PORT)]
        self.runtime = runtime or {"http": {"port": AGENT_PORT, "path": "/"}}
        self.store = store or {"memory": {}}

    def launch(self):
        boot = {
            "version": 1,
            "agent": {"name": "conformance", "namespace": "default"},
            "runtime": self.runtime,
            "containers": ["agent"],
            "store": "memory" if self.store == {"memory": {}} else self.store,
            "drain": {"token": "conformance-conformance", "graceSeconds": 10},
        }
        self.start("agent", self.agent)
        self.sidecar = self.start_sidecar(boot, self.document, ("run/outrigger/agent", "run/outrigger/tools", "skills", "var/lib/outrigger"))
        missing = self.until(self.not_yet)
        if missing:
            raise self.not_ready(missing)

    def not_yet(self):
        status, _, body = wire.http_call("GET", "/readyz", port=ADMIN_PORT)
        return None if status == 200 else f"{status} {body[:300]!r}"


class Reference:
    """The reference server in place of a pod, for what needs no more than its A2A port."""

    def __enter__(self):
        log = open(pathlib.Path(os.environ["CONFORMANCE_LOGS"]) / "reference.log", "w")
        command = reference(wire.PORT, wire.PORT + 1, "1.0", "0.3")
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START
        while True:
            try:
                return wire.card()
            except OSError:
                if time.monotonic() > deadline or self.child.poll() is not None:
                    raise
                time.sleep(0.05)

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()


def reference(port, grpc_port, *versions):
    """The command of the reference server."""
    return [sys.executable, str(HERE / "reference.py"), str(port), str(grpc_port), *versions]
