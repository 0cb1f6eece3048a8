"""Long-running processes: started detached, known by pid files, never mistaken for another process.

In the run directory, for a daemon NAME: `pid/NAME` holds its pid and nothing else, `daemon/NAME.json` how it was started
(argv) and its start time, so that a pid which the kernel gave to someone else meanwhile isn't ours any more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from .console import UserError, wait_for

# Puts itself into the cgroup before it becomes the daemon: a child forked in between can't escape.
_JOIN_CGROUP = 'echo $$ > "$0" && exec "$@"'


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is none, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else int(rest[18])


@dataclass
class Daemons:
    run: Path
    cgroup: Path | None = None  # a directory of cgroup v1 that each daemon is put into
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, argv: list[object], env: dict[str, str] | None = None) -> None:
        """Starts a daemon, detached, its output appended to log/NAME.log."""
        self._launch(name, [str(word) for word in argv], env or {})

    def start_again(self, name: str) -> None:
        """Starts a daemon the way it was started first."""
        if self.pid(name):
            raise UserError(f"{name} runs already, as pid {self.pid(name)}")
        record = self._record(name)
        self._launch(name, record["argv"], record["env"])

    def _launch(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        for folder in ("pid", "daemon", "log"):
            (self.run / folder).mkdir(parents=True, exist_ok=True)
        joined = ["/bin/sh", "-c", _JOIN_CGROUP, str(self.cgroup / "cgroup.procs"), *argv] if self.cgroup else argv
        with open(self.run / "log" / f"{name}.log", "ab") as log:
            child = subprocess.Popen(
                joined,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=os.environ | env,
                start_new_session=True,
            )
        self._children.append(child)
        record = {"argv": argv, "env": env, "start_time": start_time(child.pid)}
        (self.run / "daemon" / f"{name}.json").write_text(json.dumps(record))
        (self.run / "pid" / name).write_text(f"{child.pid}\n")

    def _record(self, name: str) -> dict:
        try:
            return json.loads((self.run / "daemon" / f"{name}.json").read_text())
        except FileNotFoundError:
            raise UserError(f"no daemon {name} in {self.run}; there are: {', '.join(self.names()) or 'none'}") from None

    def names(self) -> list[str]:
        return sorted(path.stem for path in (self.run / "daemon").glob("*.json"))

    def pid(self, name: str) -> int | None:
        """The daemon's pid, or None if it has ended."""
        record = self._record(name)
        pid = int((self.run / "pid" / name).read_text())
        return pid if record["start_time"] is not None and start_time(pid) == record["start_time"] else None

    def need_pid(self, name: str) -> int:
        if (pid := self.pid(name)) is None:
            raise UserError(f"{name} isn't running")
        return pid

    def kill(self, name: str, number: signal.Signals, seconds: float = 10) -> None:
        """Sends a signal that ends the daemon and waits until it is gone."""
        pid = self.need_pid(name)
        os.kill(pid, number)
        wait_for(f"{name} (pid {pid}) ends", seconds, lambda: self.pid(name) is None, 0.02)
        self.reap()

    def reap(self) -> None:
        """Takes the exit status of daemons that are children of this very process, so that none stays as a zombie."""
        self._children = [child for child in self._children if child.poll() is None]

    def last_words(self, name: str, lines: int = 3) -> str:
        try:
            return "\n".join((self.run / "log" / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""
