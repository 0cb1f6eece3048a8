"""What the machine must have. Missing Debian packages are installed, if we may."""

from __future__ import annotations

import os
import shutil

from .console import UserError, command

# Programs are looked for here too; a plain PATH often leaves some of these out.
os.environ["PATH"] = ":".join(
    [os.environ.get("PATH", ""), "/usr/local/go/bin", "/usr/local/sbin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
)

APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300")

# program -> Debian package
NODE_TOOLS = {
    "runc": "runc",  # runs the containers
    "nft": "nftables",  # kube-proxy
    "iptables": "iptables",  # kubelet, CNI portmap
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
}
C_COMPILER = {"gcc": "gcc"}
PYTHON_FOR_IMAGES = {"/usr/bin/python3.11": "python3.11"}
NODE_FOR_IMAGES = {"node": "nodejs", "npm": "npm"}
POSTGRES_FOR_IMAGES = {"/usr/lib/postgresql/15/bin/postgres": "postgresql-15"}


def need(tools: dict[str, str], *more: str) -> None:
    """Installs the packages of the programs that aren't there; `more` are packages that go with them."""
    missing = sorted({package for program, package in tools.items() if not shutil.which(program)})
    if not missing:
        return
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise UserError(f"please install: {' '.join(missing)}")
    print(f"installing {' '.join(missing)}", flush=True)
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command(*APT, "update", env=quiet)
    command(*APT, "install", "-y", "--no-install-recommends", *missing, *more, env=quiet)


def need_root() -> None:
    if os.geteuid() != 0:
        raise UserError("a cluster with pods needs root (e2e/cluster/light doesn't)")
