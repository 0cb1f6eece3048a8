"""A pod's worth of processes outside of one, below a folder that stands for the file system of its sidecar."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

ADMIN_PORT, LOCAL_PORT = 19464, 19900


class Processes:
    """Started on entry, by `launch`, which a pod defines, and ended on exit. `may_need_killing` names those that may be deaf to SIGTERM."""

    may_need_killing = ()

    def __init__(self, name, logs, prefix, start, stop):
        """`start` and `stop` are the seconds that the start of all and the end of each may take."""
        self.name, self.logs, self.prefix = name, pathlib.Path(logs), prefix
        self.start_seconds, self.stop_seconds = start, stop
        self.children = []

    def __enter__(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix=self.prefix))
        try:
            self.launch()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        forced = []
        for name, child in reversed(self.children):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
            try:
                child.wait(self.stop_seconds)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                forced.append(name)
        shutil.rmtree(self.root, ignore_errors=True)
        deaf = [name for name in forced if name not in self.may_need_killing]
        if deaf:
            raise RuntimeError(f"did not end on SIGTERM: {', '.join(deaf)}")

    def start(self, name, command, **env):
        log = open(self.logs / f"{self.name}-{name}.log", "w")
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | env)
        self.children.append((name, child))
        return child

    def start_sidecar(self, boot, live, folders):
        """The sidecar with its two documents; `folders` are those that its volumes would bring."""
        for name, document in (("boot", boot), ("live", live)):
            path = self.root / f"etc/outrigger/{name}/{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(document))
        for folder in folders:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        return self.start("sidecar", [os.environ["OUTRIGGER_BIN"], "run", "--root", str(self.root)])

    def until(self, look):
        """Waits until `look`, which says what is missing, says nothing. Returns what was missing at the end."""
        deadline, missing = time.monotonic() + self.start_seconds, "no answer"
        while time.monotonic() < deadline:
            for name, child in self.children:
                if child.poll() is not None:
                    raise RuntimeError(f"{name} ended with {child.returncode}: {self.tail(name)}")
            try:
                missing = look()
                if not missing:
                    return None
            except OSError as error:
                missing = str(error)
            time.sleep(0.02)
        return missing

    def not_ready(self, why):
        return RuntimeError(f"the sidecar is not ready after {self.start_seconds} s: {why}; {self.tail('sidecar')}")

    def tail(self, name):
        return (self.logs / f"{self.name}-{name}.log").read_text(errors="replace")[-2000:]

    def local(self):
        """Base of the local API: `/t/{token}`."""
        return f"/t/{(self.root / 'run/outrigger/agent/token').read_text().strip()}"
