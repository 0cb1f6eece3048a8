"""What a cluster could leave behind on the machine: taken before and after, and compared."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from . import cgroups, lock
from .console import command
from .daemons import start_time

# Counters, and what the kernel changes by itself.
VOLATILE = re.compile(
    r"^(fs/(dentry-state|file-nr|inode-nr|inode-state|aio-nr|pipe-|quota/|epoll/)|kernel/(random/|ns_last_pid|pty/nr|perf_)"
    r"|net/netfilter/nf_conntrack_count|sunrpc/)"
)
NAMESPACES = ("net", "mnt", "uts", "ipc", "pid", "cgroup", "user")
LISTED = ("/run", "/var/lib", "/var/log", "/etc", "/etc/cni", "/opt", "/")  # folders whose entries must stay the same
MADE_BY_TOOLS = {"/run/mount", "/run/netns", "/run/lock"}  # mount's and ip's own


def snapshot() -> dict[str, dict[str, str]]:
    """Kind -> name -> state."""
    return {
        "sysctl": _sysctls(),
        "mount": {" ".join(fields[3:5]): fields[2] for fields in _mounts()},
        "link": {name: "" for name in os.listdir("/sys/class/net")},
        "route": {line: "" for line in command("ip", "route").splitlines()},
        "nftables": {line: "" for line in command("nft", "list", "ruleset").splitlines()},
        "file": _files(),
        "hostname": {"": os.uname().nodename},
    }


def differences(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> list[str]:
    found = []
    for kind, old in before.items():
        new = after[kind]
        found += [f"{kind} {name} is new" for name in sorted(new.keys() - old.keys())]
        found += [f"{kind} {name} is gone" for name in sorted(old.keys() - new.keys())]
        changed = (name for name in sorted(old.keys() & new.keys()) if old[name] != new[name])
        found += [f"{kind} {name}: {old[name]!r} became {new[name]!r}" for name in changed]
    return found


def _files() -> dict[str, str]:
    present = {str(path) for folder in LISTED if Path(folder).is_dir() for path in Path(folder).iterdir()}
    return dict.fromkeys(present | MADE_BY_TOOLS, "")


def _sysctls() -> dict[str, str]:
    values = {}
    for folder, _, files in os.walk("/proc/sys"):
        for file in files:
            path = Path(folder, file)
            name = str(path.relative_to("/proc/sys"))
            if not VOLATILE.match(name):
                try:
                    values[name] = path.read_text(errors="replace").strip()
                except OSError:
                    continue  # for writing only, or not for us
    return values


def _mounts() -> list[list[str]]:
    return [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]


@dataclass
class Footprint:
    """The processes of a running cluster and the namespaces they are in."""

    processes: set[tuple[int, int | None]] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, name: str) -> Footprint:
        pids = cgroups.members(name)
        own = _namespaces("self")
        return cls({(pid, start_time(pid)) for pid in pids}, {ns for pid in pids for ns in _namespaces(pid)} - own)

    def remains(self, name: str, run: Path) -> list[str]:
        """What of it is still there after `down`."""
        everywhere = {ns for pid in os.listdir("/proc") if pid.isdecimal() for ns in _namespaces(pid)}
        found = [
            f"process {pid}" for pid, started in self.processes if started is not None and start_time(pid) == started
        ]
        found += [f"namespace {ns}" for ns in sorted(self.namespaces & everywhere)]
        found += [
            f"mount {' '.join(fields[3:5])}"
            for fields in _mounts()
            if str(run) in " ".join(fields) or f"/{name}-" in fields[4]
        ]
        found += lock.leftovers(name)
        found += [f"file {path}" for path in run.iterdir() if path.name != "log"] if run.is_dir() else []
        return found


def _namespaces(pid: int | str) -> set[str]:
    found = set()
    for kind in NAMESPACES:
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
        except OSError:
            continue
    return found
