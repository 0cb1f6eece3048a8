"""A pod's worth of processes outside of one: the sidecar's binary with its two documents, and the scripted agent."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from . import wire

HERE = pathlib.Path(__file__).resolve().parent.parent
ADMIN_PORT, LOCAL_PORT, AGENT_PORT = 19464, 19900, 8000
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


class Pod:
    """Started on entry, ended on exit. Its ports are those of every sidecar, so one at a time in a network namespace."""

    def __init__(self, document, name, runtime=None, store=None, agent=None):
        self.document, self.name = document, name
        self.agent = agent or [sys.executable, "-u", str(HERE / "agent.py"), str(AGENT_PORT)]
        self.runtime = runtime or {"http": {"port": AGENT_PORT, "path": "/"}}
        self.store = store or {"memory": {}}
        self.logs = pathlib.Path(os.environ["CONFORMANCE_LOGS"])
        self.children = []

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def start(self, name, command):
        log = open(self.logs / f"{self.name}-{name}.log", "w")
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.children.append((name, child))
        return child

    def __enter__(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="conformance-"))
        boot = {
            "version": 1,
            "agent": {"name": "conformance", "namespace": "default"},
            "runtime": self.runtime,
            "containers": ["agent"],
            "store": "memory" if self.store == {"memory": {}} else self.store,
            "drain": {"token": "conformance-conformance", "graceSeconds": 10},
        }
        self.write("etc/outrigger/boot/boot.json", json.dumps(boot))
        self.write("etc/outrigger/live/live.json", json.dumps(self.document))
        for folder in ("run/outrigger/agent", "run/outrigger/tools", "skills", "var/lib/outrigger"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        try:
            self.start("agent", self.agent)
            self.sidecar = self.start("sidecar", [os.environ["OUTRIGGER_BIN"], "run", "--root", str(self.root)])
            self.until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def until_ready(self):
        deadline = time.monotonic() + START
        last = "no answer"
        while time.monotonic() < deadline:
            for name, child in self.children:
                if child.poll() is not None:
                    raise RuntimeError(f"{name} ended with {child.returncode}: {self.tail(name)}")
            try:
                status, _, body = wire.http_call("GET", "/readyz", port=ADMIN_PORT)
                if status == 200:
                    return
                last = f"{status} {body[:300]!r}"
            except OSError as error:
                last = str(error)
            time.sleep(0.02)
        raise RuntimeError(f"the sidecar is not ready after {START} s: {last}; {self.tail('sidecar')}")

    def tail(self, name):
        return (self.logs / f"{self.name}-{name}.log").read_text()[-2000:]

    def local(self):
        """Base of the local API: `/t/{token}`."""
        return f"/t/{(self.root / 'run/outrigger/agent/token').read_text().strip()}"

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
        shutil.rmtree(self.root, ignore_errors=True)
        if "sidecar" in forced:
            raise RuntimeError("the sidecar did not end on SIGTERM")


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
