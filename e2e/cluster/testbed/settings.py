"""Names, paths and addresses of one cluster. Everything that can be set from outside is read here."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from .console import UserError

HERE = Path(__file__).resolve().parent.parent  # e2e/cluster
TEMPLATES = HERE / "templates"

DEFAULT_KUBE = "1.36"  # the version of go/kube; other lanes are go/kube-VERSION
MAX_NODES = 20

CP_IP = "10.200.0.1"
DNS_IP = "10.96.0.10"
KUBERNETES_IP = "10.96.0.1"
SERVICE_CIDR = "10.96.0.0/16"
POD_CIDR = "10.244.0.0/16"
API_PORT = 6443

# What a node's mount namespace covers (node-init): a run directory below one of these would be hidden there.
COVERED = ("/run", "/var/lib", "/var/log")


def node_number(node: str) -> int:
    if not re.fullmatch(r"n[1-9][0-9]?", node):
        raise UserError(f"{node!r} is no node name: nodes are called n1, n2, ...")
    return int(node[1:])


def node_ip(node: str) -> str:
    return f"10.200.0.{10 + node_number(node)}"


def node_pod_cidr(node: str) -> str:
    return f"10.244.{node_number(node)}.0/24"


def lanes() -> list[str]:
    """The Kubernetes versions that can be built, the default one first."""
    return [DEFAULT_KUBE, *sorted(path.name.removeprefix("kube-") for path in (HERE / "go").glob("kube-*"))]


def pick_lane(value: str) -> str:
    if (lane := value or DEFAULT_KUBE) not in lanes():
        raise UserError(f"KUBE={value}: there is no such version here; choose one of {', '.join(lanes())}")
    return lane


@dataclass(frozen=True)
class Cache:
    """What outlives a cluster: built programs and images, each named after the hash of what it is made from."""

    root: Path
    lane: str = DEFAULT_KUBE

    @property
    def _suffix(self) -> str:
        return "" if self.lane == DEFAULT_KUBE else f"-{self.lane}"

    @property
    def store(self) -> Path:
        return self.root / "cluster" / "store"

    @property
    def bin(self) -> Path:
        """Links to all programs of the lane: what belongs in PATH."""
        return self.root / "cluster" / f"bin{self._suffix}"

    @property
    def cni(self) -> Path:
        """Not in bin: one of the plugins is called like iproute2's `bridge`."""
        return self.root / "cluster" / "cni"

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def go_build(self) -> Path:
        return self.root / "go" / "build"

    @property
    def go_mod(self) -> Path:
        return self.root / "go" / "mod"

    @classmethod
    def from_env(cls) -> Cache:
        root = os.environ.get("OUTRIGGER_CACHE") or "~/.cache/outrigger"
        return cls(Path(root).expanduser().absolute(), pick_lane(os.environ.get("KUBE", "")))


@dataclass(frozen=True)
class Cluster:
    """One cluster with pods: namespaces NAME-cp and NAME-nI, cgroups /NAME (pods) and pids:/NAME.procs (daemons)."""

    run: Path
    cache: Cache
    nodes: list[str] = field(default_factory=list)
    name: str = "outrigger"

    @property
    def control_netns(self) -> str:
        return f"{self.name}-cp"

    def node_netns(self, node: str) -> str:
        return f"{self.name}-{node}"

    @property
    def netns_names(self) -> list[str]:
        return [self.control_netns, *(self.node_netns(n) for n in self.nodes)]

    @property
    def pki(self) -> Path:
        return self.run / "pki"

    @property
    def log(self) -> Path:
        return self.run / "log"

    @property
    def audit_log(self) -> Path:
        return self.log / "audit.jsonl"

    @property
    def kubeconfig(self) -> Path:
        return self.run / "kubeconfig"

    @property
    def kubectl(self) -> list[str]:
        """The words of a kubectl command that asks this cluster."""
        return [str(self.cache.bin / "kubectl"), "--kubeconfig", str(self.kubeconfig)]

    def node_dir(self, node: str) -> Path:
        return self.run / "nodes" / node

    @property
    def record(self) -> Path:
        return self.run / "cluster.json"

    def save(self) -> None:
        """Notes what `load` and `fault` must know later, whatever their environment says."""
        self.record.write_text(
            json.dumps({"cache": str(self.cache.root), "lane": self.cache.lane, "nodes": self.nodes})
        )

    @classmethod
    def planned(cls) -> Cluster:
        """The cluster that `up` is asked for."""
        wanted = os.environ.get("NODES") or "2"
        if not wanted.isdecimal() or not 1 <= int(wanted) <= MAX_NODES:
            raise UserError(f"NODES={wanted}: give a number from 1 to {MAX_NODES}")
        return cls(run_dir(), Cache.from_env(), [f"n{i}" for i in range(1, int(wanted) + 1)])

    @classmethod
    def running(cls) -> Cluster:
        """The cluster that `up` has made."""
        run = run_dir()
        try:
            record = json.loads((run / "cluster.json").read_text())
        except FileNotFoundError:
            raise UserError(f"no cluster in {run}: run e2e/cluster/up first") from None
        return cls(run, Cache(Path(record["cache"]), record["lane"]), record["nodes"])


def run_dir() -> Path:
    run = Path(os.environ.get("OUTRIGGER_RUN") or "/tmp/outrigger-cluster").absolute()
    if any(run.is_relative_to(covered) for covered in COVERED):
        raise UserError(
            f"OUTRIGGER_RUN={run}: the nodes can't see files below {', '.join(COVERED)}; choose another place"
        )
    return run
