"""The programs of a cluster, each built from a Go module in go/NAME (pause: from C) into the cache, once per content.

A component's folder in the store is called NAME@KEY, where KEY is the hash of everything that goes into it: go.mod, go.sum, main.go,
flags and the compiler's version. It is built beside its place and renamed, so a half-finished one is never used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from . import host
from .console import UserError, command
from .settings import DEFAULT_KUBE, HERE, Cache

KEPT = 3  # versions of a component that stay in the store, the newest first
GO_FLAGS = ("-trimpath", "-pgo=off")
KUBE_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
    "kubemark",
)
CONTAINERD = "github.com/containerd/containerd/v2"
CNI = "github.com/containernetworking/plugins/plugins"


@dataclass(frozen=True)
class Component:
    name: str
    packages: tuple[str, ...] = ()
    links: dict[str, str] = field(default_factory=dict)  # name in bin -> file in the store
    tags: str = ""
    ldflags: str = ""  # {version} stands for the version of `module`
    module: str = ""
    sources: tuple[str, ...] = ()  # relative to the component's folder

    @property
    def folder(self) -> Path:
        return HERE / "go" / self.name

    @property
    def version(self) -> str:
        found = re.search(
            rf"^(?:require)?\s+{re.escape(self.module)} (v\S+)", (self.folder / "go.mod").read_text(), re.M
        )
        if not found:
            raise UserError(f"{self.folder}/go.mod doesn't require {self.module}")
        return found[1]

    def build_command(self, out: str) -> list[str]:
        ldflags = f"-s -w {self.ldflags}".strip()
        if "{" in ldflags:
            minor = self.version.split(".")[1]
            ldflags = ldflags.format(version=self.version, minor=minor)
        tags = ["-tags", self.tags] if self.tags else []
        return ["go", "build", *GO_FLAGS, *tags, "-ldflags", ldflags, "-o", out, *self.packages]

    def key(self) -> str:
        content = hashlib.sha256()
        for name in ("go.mod", "go.sum", *self.sources):
            content.update((self.folder / name).read_bytes() + b"\0")
        content.update(repr((self.build_command("out/"), _go_version())).encode())
        return content.hexdigest()[:16]

    def build(self, out: Path, cache: Cache) -> None:
        environment = os.environ | {
            "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -modcacherw",
            "GOCACHE": str(cache.go_build), "GOMODCACHE": str(cache.go_mod),
        }  # fmt: skip
        done = subprocess.run(
            self.build_command(f"{out}/"), cwd=self.folder, env=environment
        )  # its messages are the user's
        if done.returncode:
            raise UserError(f"{self.name}: go build failed with status {done.returncode}")


@dataclass(frozen=True)
class CProgram(Component):
    """A static program of one C file."""

    @property
    def folder(self) -> Path:
        return HERE

    @property
    def version(self) -> str:
        return ""

    def key(self) -> str:
        compiler = command("gcc", "--version").splitlines()[0]
        return hashlib.sha256((HERE / f"{self.name}.c").read_bytes() + compiler.encode()).hexdigest()[:16]

    def build(self, out: Path, cache: Cache) -> None:
        command("gcc", "-Os", "-static", "-Wall", "-Werror", "-o", out / self.name, HERE / f"{self.name}.c")


def _kube(lane: str) -> Component:
    # Without these the server says v0.0.0-master, and clients that look at the version go wrong.
    stamps = {
        "gitVersion": "{version}",
        "gitMajor": "1",
        "gitMinor": "{minor}",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    places = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return Component(
        "kube" if lane == DEFAULT_KUBE else f"kube-{lane}",
        ("../kube/main.go",),
        {program: "main" for program in KUBE_PROGRAMS},
        ldflags=" ".join(f"-X {place}.{name}={value}" for place in places for name, value in stamps.items()),
        module="k8s.io/kubernetes",
        sources=("../kube/main.go",),
    )


def _same(*programs: str) -> dict[str, str]:
    return {program: program for program in programs}


def all_components(lane: str) -> dict[str, Component]:
    """By name; `kube` is that of the lane."""
    components = [
        _kube(lane),
        Component(
            "containerd",
            tuple(f"{CONTAINERD}/cmd/{p}" for p in ("containerd", "containerd-shim-runc-v2", "ctr")),
            _same("containerd", "containerd-shim-runc-v2", "ctr"),
            tags="no_btrfs no_zfs no_devmapper",
            ldflags=f"-X {CONTAINERD}/version.Version={{version}} -X {CONTAINERD}/version.Package={CONTAINERD}",
            module=CONTAINERD,
        ),
        Component(  # the program comes out under the name of its module's last part
            "etcd",
            ("go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/etcdctl/v3"),
            {"etcd": "server", "etcdctl": "etcdctl"},
            module="go.etcd.io/etcd/server/v3",
        ),
        Component(
            "cni",
            (f"{CNI}/main/bridge", f"{CNI}/main/loopback", f"{CNI}/ipam/host-local", f"{CNI}/meta/portmap"),
            module="github.com/containernetworking/plugins",
        ),
        Component("coredns", ("github.com/coredns/coredns",), _same("coredns"), module="github.com/coredns/coredns"),
        Component(
            "metrics-server",
            ("sigs.k8s.io/metrics-server/cmd/metrics-server",),
            _same("metrics-server"),
            module="sigs.k8s.io/metrics-server",
        ),
        Component(
            "crictl",
            ("sigs.k8s.io/cri-tools/cmd/crictl",),
            _same("crictl"),
            ldflags="-X sigs.k8s.io/cri-tools/pkg/version.Version={version}",
            module="sigs.k8s.io/cri-tools",
        ),
        Component(
            "helm",
            ("helm.sh/helm/v4/cmd/helm",),
            _same("helm"),
            ldflags="-X helm.sh/helm/v4/internal/version.version={version}",
            module="helm.sh/helm/v4",
        ),
        CProgram("pause", links=_same("pause")),
    ]
    return {("kube" if c.name.startswith("kube") else c.name): c for c in components}


def pick(lane: str, names: list[str]) -> list[Component]:
    known = all_components(lane)
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"unknown component {' '.join(unknown)}; there are: {' '.join(known)}")
    return [known[name] for name in names or known]


@cache
def _go_version() -> str:
    if not shutil.which("go"):
        raise UserError("Go isn't installed: the cluster's programs are built with it (1.26.8 or newer)")
    return command("go", "version").strip()


@contextmanager
def _only_build(cache: Cache) -> Iterator[None]:
    """One build at a time on the machine: linking Kubernetes alone takes 2.4 GB of memory."""
    cache.store.mkdir(parents=True, exist_ok=True)
    with open(cache.store.parent / "build.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build to finish", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _link(at: Path, to: Path) -> None:
    """Makes or changes a link in one step, so that a program which is started meanwhile is found."""
    if at.is_symlink() and os.readlink(at) == str(to):
        return
    at.parent.mkdir(parents=True, exist_ok=True)
    new = at.with_name(f".{at.name}.{os.getpid()}")
    new.symlink_to(to)
    new.replace(at)


def oldest(versions: Iterable[Path]) -> list[Path]:
    """Those that needn't be kept any longer."""
    return sorted(versions, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]


def _build(component: Component, place: Path, cache: Cache) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f".{component.name}-", dir=cache.store))
    try:
        component.build(temporary, cache)
        temporary.chmod(0o755)
        temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in oldest(cache.store.glob(f"{component.name}@*")):
        shutil.rmtree(old)


def ensure(cache: Cache, component: Component, quiet: bool) -> Path:
    """The component's folder in the store, built if it isn't there; the programs are linked into bin."""
    started = time.monotonic()
    place = cache.store / f"{component.name}@{component.key()}"
    label = f"{component.name} {component.version}".strip()
    if place.is_dir():
        done = "" if quiet else "cached"
        os.utime(place)
    else:
        with _only_build(cache):
            if not place.is_dir():
                print(f"{'':9}  {label}: building", flush=True)
                _build(component, place, cache)
        size = sum(file.stat().st_size for file in place.iterdir())
        done = f"built, {size / 1e6:.0f} MB"
    for name, file in component.links.items():
        _link(cache.bin / name, place / file)
    if component.name == "cni":
        _link(cache.cni, place)
    if done:
        print(f"{time.monotonic() - started:7.1f} s  {label}: {done}", flush=True)
    return place


def build(cache: Cache, names: list[str] | None = None, quiet: bool = False) -> None:
    """Builds what is missing of the named components, or of all; `quiet` has nothing to say about those that are there."""
    chosen = pick(cache.lane, names or [])
    if any(isinstance(component, CProgram) for component in chosen):
        host.need(host.C_COMPILER, "libc6-dev")
    for component in chosen:
        ensure(cache, component, quiet)
