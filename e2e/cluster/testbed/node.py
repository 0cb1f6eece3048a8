"""One node: its folder and configuration, its namespaces, and how each of its daemons is started.

A daemon of node nI is called NAME-nI; holder-nI keeps the node's namespaces open.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from string import Template

from . import network
from .console import UserError, succeeds
from .daemons import Daemons
from .settings import DNS_IP, HERE, POD_CIDR, TEMPLATES, Cluster, node_ip, node_pod_cidr

CONTROL_PLANE_MIB = 6000  # of the machine's memory, not the nodes' to give away
IMAGES_SHARE = 4  # a node's images and containers' root file systems may fill the machine's memory divided by this
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"


def _memory_mib() -> int:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    return int(line.split()[1]) // 1024


def configure(cluster: Cluster, node: str) -> None:
    """Writes the node's folder."""
    folder = cluster.node_dir(node)
    for sub in ("cni", "manifests"):
        (folder / sub).mkdir(parents=True)
    memory = _memory_mib()
    values = {
        "node": node,
        "node_dir": folder,
        "ip": node_ip(node),
        "pod_cidr": node_pod_cidr(node),
        "cluster_cidr": POD_CIDR,
        "dns_ip": DNS_IP,
        "pki": cluster.pki,
        "cgroup_root": f"/{cluster.name}/{node}",
        "reserved_mib": memory - max(memory - CONTROL_PLANE_MIB, memory // 2) // len(cluster.nodes),
        "cni": cluster.cache.cni,
        "runc": shutil.which("runc"),
    }
    for name, to in (
        ("containerd.toml", folder),
        ("kubelet.yaml", folder),
        ("proxy.yaml", folder),
        ("10-pods.conflist", folder / "cni"),
    ):
        (to / name).write_text(Template((TEMPLATES / name).read_text()).substitute(values))
    (folder / "resolv.conf").write_text(f"nameserver {DNS_IP}\n")


def enter(cluster: Cluster, daemons: Daemons, node: str) -> list[str]:
    """The words in front of a command that is to run inside the node: its network, mounts and host name. Give absolute paths."""
    if f"holder-{node}" not in daemons.names():
        raise UserError(f"no node {node}; there are: {', '.join(cluster.nodes)}")
    return ["nsenter", "--target", str(daemons.need_pid(f"holder-{node}")), "--mount", "--net", "--uts", "--"]


def ctr(cluster: Cluster, daemons: Daemons, node: str) -> list[str]:
    """containerd's own client, on that node."""
    return [*enter(cluster, daemons, node), str(cluster.cache.bin / "ctr"), "-a", CONTAINERD_SOCKET, "-n", "k8s.io"]


def start_holder(cluster: Cluster, daemons: Daemons, node: str) -> None:
    unshare = ("unshare", "--mount", "--uts", "--propagation", "private")
    init = (HERE / "testbed" / "node-init", node, cluster.node_dir(node), _memory_mib() // IMAGES_SHARE)
    daemons.start(f"holder-{node}", [*network.enter(cluster.node_netns(node)), *unshare, *init])


def is_prepared(cluster: Cluster, node: str) -> bool:
    return (cluster.node_dir(node) / "ready").exists()


def _start(cluster: Cluster, daemons: Daemons, node: str, program: str, name: str, *flags: object) -> None:
    daemons.start(f"{name}-{node}", [*enter(cluster, daemons, node), cluster.cache.bin / program, *flags])


def start_containerd(cluster: Cluster, daemons: Daemons, node: str) -> None:
    _start(cluster, daemons, node, "containerd", "containerd", "--config", cluster.node_dir(node) / "containerd.toml")


def answers(cluster: Cluster, daemons: Daemons, node: str) -> bool:
    """Whether the node's containerd takes requests."""
    return succeeds(*ctr(cluster, daemons, node), "version")


def start_kubelet(cluster: Cluster, daemons: Daemons, node: str) -> None:
    _start(
        cluster, daemons, node, "kubelet", "kubelet",
        f"--config={cluster.node_dir(node) / 'kubelet.yaml'}", f"--kubeconfig={cluster.pki}/node-{node}.kubeconfig",
        f"--hostname-override={node}", f"--node-ip={node_ip(node)}", "--v=2",
    )  # fmt: skip


def start_proxy(cluster: Cluster, daemons: Daemons, node: str) -> None:
    _start(cluster, daemons, node, "kube-proxy", "proxy", f"--config={cluster.node_dir(node) / 'proxy.yaml'}")
