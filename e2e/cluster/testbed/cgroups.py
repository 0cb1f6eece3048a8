"""The cluster's control groups (cgroup v1): /NAME/nI holds the pods of a node, pids:/NAME.procs the daemons.

Together these two trees hold every process of a cluster, containerd's shims included, for a child stays in its parent's group.
So ending a cluster means: kill what is in them. Nothing else is ever hit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from .console import UserError

ROOT = Path("/sys/fs/cgroup")
NEEDED = ("cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "blkio", "systemd")
KILL_SECONDS = 20
REMOVE_SECONDS = 5


def check() -> None:
    missing = [h for h in NEEDED if not (ROOT / h / "cgroup.procs").exists()]
    if missing:
        raise UserError(
            f"the test bed runs on cgroup v1 (or hybrid) only; not mounted below {ROOT}: {', '.join(missing)}"
        )


def daemons(name: str) -> Path:
    return ROOT / "pids" / f"{name}.procs"


def create(name: str, nodes: list[str]) -> None:
    daemons(name).mkdir(exist_ok=True)
    for hierarchy in NEEDED:
        for node in nodes:
            (ROOT / hierarchy / name / node).mkdir(parents=True, exist_ok=True)
    for group in (name, *(f"{name}/{node}" for node in nodes)):
        for setting in ("cpuset.cpus", "cpuset.mems"):  # born empty, and then no process may enter
            (ROOT / "cpuset" / group / setting).write_text((ROOT / "cpuset" / setting).read_text())


def members(name: str) -> list[int]:
    """The pids of all processes of the cluster."""
    return processes(daemons(name)) + processes(ROOT / "pids" / name)


def processes(group: Path) -> list[int]:
    """The pids in a group and the groups below it. Groups may vanish while we look."""
    pids: list[int] = []
    for folder, _, _ in os.walk(group):
        try:
            pids += [int(line) for line in Path(folder, "cgroup.procs").read_text().split()]
        except OSError:
            continue
    return pids


def kill(name: str, reap: Callable[[], None] | None = None) -> None:
    """Kills all processes of the cluster and waits until they are gone."""
    end = time.monotonic() + KILL_SECONDS
    while pids := members(name):
        if time.monotonic() > end:
            raise UserError(f"processes that don't end: {' '.join(map(str, pids))}")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        _thaw(name)
        if reap:
            reap()
        time.sleep(0.05)


def _thaw(name: str) -> None:
    """A frozen process gets its KILL only when it is thawed; runc freezes containers for a moment at times."""
    for folder, _, _ in os.walk(ROOT / "freezer" / name):
        try:
            Path(folder, "freezer.state").write_text("THAWED")
        except OSError:
            continue


def left(name: str) -> list[Path]:
    """The cluster's groups that exist, in any hierarchy."""
    return [group for h in sorted(ROOT.iterdir()) for group in (h / name, h / f"{name}.procs") if group.is_dir()]


def remove(name: str) -> None:
    """Removes the emptied groups; the kernel may take a moment until it lets them go."""
    end = time.monotonic() + REMOVE_SECONDS
    while groups := left(name):
        for group in groups:
            for folder, _, _ in os.walk(group, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    pass
        if left(name) and time.monotonic() > end:
            raise UserError(f"can't remove cgroups: {', '.join(map(str, left(name)))}")
        if left(name):
            time.sleep(0.05)
