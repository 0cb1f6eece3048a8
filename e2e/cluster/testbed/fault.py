"""Faults for tests: ends, pauses and restarts daemons and containers, and plugs nodes out."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from . import cgroups, containers, network
from .console import UserError, wait_for
from .daemons import Daemons, start_time
from .settings import Cluster, run_dir

STOP_SECONDS = 10  # between TERM and KILL


def pid(target: str) -> None:
    """prints the pid of a daemon, or of a container's first process"""
    print(_pids(target)[0])


def pids(target: str) -> None:
    """prints all processes of a container, one per line: pid, command line"""
    for number in _pids(target):
        try:
            words = Path(f"/proc/{number}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        print(number, b" ".join(words).decode(errors="replace"))


def kill(target: str) -> None:
    """KILL to a daemon or a container's first process; returns when it is gone"""
    if not _is_container(target):
        _daemons().kill(target, signal.SIGKILL)
        return
    first = _pids(target)[0]
    started = start_time(first)
    os.kill(first, signal.SIGKILL)
    wait_for(f"{target} (pid {first}) ends", STOP_SECONDS, lambda: start_time(first) != started, 0.02)


def pause(target: str) -> None:
    """STOP to a daemon, or to all processes of a container"""
    _send(target, signal.SIGSTOP)


def resume(target: str) -> None:
    """CONT, the end of a pause"""
    _send(target, signal.SIGCONT)


def stop(target: str) -> None:
    """TERM to a daemon, and KILL if it doesn't end"""
    daemons = _daemons(target)
    try:
        daemons.kill(target, signal.SIGTERM, STOP_SECONDS)
    except UserError:
        if daemons.pid(target):
            daemons.kill(target, signal.SIGKILL)


def start(target: str) -> None:
    """starts a daemon again, the way `up` had started it"""
    _daemons(target).start_again(target)


def link_down(target: str) -> None:
    """plugs a node out: a network partition"""
    _set_link(target, "down")


def link_up(target: str) -> None:
    """plugs a node in"""
    _set_link(target, "up")


ACTIONS: dict[str, Callable[[str], None]] = {
    action.__name__.replace("_", "-"): action
    for action in (kill, pause, resume, stop, start, pid, pids, link_down, link_up)
}


def _is_container(target: str) -> bool:
    return target.count("/") == 2


def _daemons(target: str = "") -> Daemons:
    if _is_container(target):
        raise UserError(f"{target} is a container: the kubelet starts and stops it")
    run = run_dir()
    # Daemons of the light variant live without a cgroup.
    cgroup = cgroups.daemons("outrigger") if (run / "cluster.json").exists() else None
    return Daemons(run, cgroup)


def _pids(target: str) -> list[int]:
    return containers.pids(Cluster.running(), target) if _is_container(target) else [_daemons().need_pid(target)]


def _send(target: str, number: signal.Signals) -> None:
    for one in _pids(target):
        try:
            os.kill(one, number)
        except ProcessLookupError:
            continue


def _set_link(target: str, state: str) -> None:
    cluster = Cluster.running()
    if target not in cluster.nodes:
        raise UserError(f"no node {target}; there are: {' '.join(cluster.nodes)}")
    network.set_link(cluster, target, state)
