"""One cluster of a name at a time on a machine.

The lock is a file /run/NAME-cluster.lock. While `up` or `down` is at work it holds an flock on it. The file's content tells of the
cluster that `up` made: it stays until `down`. A record without living processes behind it is stale: its cluster crashed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from . import cgroups, network
from .console import UserError
from .daemons import start_time

MAX_CALLER = 80  # characters of the calling command's line that the record keeps


@dataclass
class Record:
    run: str  # run directory
    pid: int  # of `up`
    pid_start: int | None
    started: str
    caller: str  # what called `up`
    netns_was_mounted: bool
    ready: bool = False

    def __str__(self) -> str:
        return f"started {self.started} by pid {self.pid} ({self.caller}), state in {self.run}"


def new_record(run: Path) -> Record:
    try:
        caller = (
            Path(f"/proc/{os.getppid()}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        )
    except OSError:
        caller = ""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    return Record(
        str(run), os.getpid(), start_time(os.getpid()), now, caller[:MAX_CALLER] or "unknown", network.is_mounted()
    )


class Lock:
    """The held lock: reads, writes and drops the record."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path

    def record(self) -> Record | None:
        return _parse(self._path)

    def write(self, record: Record) -> None:
        data = json.dumps(asdict(record)).encode()
        os.pwrite(self._descriptor, data, 0)
        os.ftruncate(self._descriptor, len(data))

    def drop(self) -> None:
        """Nothing is left to know about."""
        self._path.unlink(missing_ok=True)


def _path(name: str) -> Path:
    return Path(f"/run/{name}-cluster.lock")


def _parse(path: Path) -> Record | None:
    try:
        return Record(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


@contextmanager
def held(name: str, wait_seconds: float = 0) -> Iterator[Lock]:
    """Holds the lock; an error that names the holder if somebody else has it for longer than `wait_seconds`."""
    path = _path(name)
    end = time.monotonic() + wait_seconds
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                break  # else the holder before us has removed it: take the new one
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(descriptor)
                raise UserError(
                    f"another `up` or `down` of cluster {name} is at work: {_parse(path) or 'just begun'}"
                ) from None
            time.sleep(0.1)
        os.close(descriptor)
    try:
        yield Lock(descriptor, path)
    finally:
        if not os.fstat(descriptor).st_size:  # nothing was recorded
            path.unlink(missing_ok=True)
        os.close(descriptor)


def is_alive(record: Record | None, name: str) -> bool:
    """Whether the record tells of a cluster that is in use. Call with the lock held: then no `up` is at work any more."""
    return record is not None and record.ready and bool(cgroups.processes(cgroups.daemons(name)))


def leftovers(name: str) -> list[str]:
    """What a cluster has on the machine."""
    found = [f"{len(pids)} processes"] if (pids := cgroups.members(name)) else []
    return found + network.left(name) + [str(group) for group in cgroups.left(name)]
