"""Networks: a namespace for the control plane with a bridge, one per node. No default route anywhere, so nothing leaves the machine."""

from __future__ import annotations

from pathlib import Path

from .console import command, succeeds
from .settings import CP_IP, SERVICE_CIDR, Cluster, node_ip, node_pod_cidr

NETNS = Path("/run/netns")
BRIDGE = "node0"


def enter(netns: str) -> list[str]:
    """The words in front of a command that is to run inside a network namespace. (`ip netns exec` would hide the cgroups.)"""
    return ["nsenter", f"--net={NETNS / netns}", "--"]


def node_link(node: str) -> str:
    """The control plane's end of the cable to a node."""
    return f"v{node}"


def _ip(netns: str, script: str) -> None:
    command("ip", "-netns", netns, "-batch", "-", input=script)


def _forward(netns: str) -> None:
    command(*enter(netns), "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")


def create(cluster: Cluster) -> None:
    control = cluster.control_netns
    for netns in cluster.netns_names:
        command("ip", "netns", "add", netns)
    _ip(
        control,
        f"""\
link set lo up
link add {BRIDGE} type bridge
addr add {CP_IP}/24 dev {BRIDGE}
link set {BRIDGE} up
route add {SERVICE_CIDR} dev {BRIDGE}
""",
    )
    _forward(control)
    for node in cluster.nodes:
        _ip(
            control,
            f"""\
link add {node_link(node)} type veth peer name eth0 netns {cluster.node_netns(node)}
link set {node_link(node)} master {BRIDGE}
link set {node_link(node)} up
""",
        )
        # The route for Services: a connection made on the node itself is routed before it is translated.
        _ip(
            cluster.node_netns(node),
            f"""\
link set lo up
addr add {node_ip(node)}/24 dev eth0
link set eth0 up
route add {SERVICE_CIDR} dev eth0
""",
        )
        _forward(cluster.node_netns(node))
    for netns in cluster.netns_names:  # everyone knows the way to each node's pods
        others = [node for node in cluster.nodes if cluster.node_netns(node) != netns]
        _ip(netns, "".join(f"route add {node_pod_cidr(node)} via {node_ip(node)}\n" for node in others))


def set_link(cluster: Cluster, node: str, state: str) -> None:
    """Plugs a node in (up) or out (down)."""
    command("ip", "-netns", cluster.control_netns, "link", "set", node_link(node), state)


def listens(netns: str, port: int) -> bool:
    """Whether something listens on that port of the namespace's loopback address."""
    return succeeds(*enter(netns), "bash", "-c", f": < /dev/tcp/127.0.0.1/{port}")


def left(name: str) -> list[str]:
    return sorted(path.name for path in NETNS.glob(f"{name}-*")) if NETNS.is_dir() else []


def is_mounted() -> bool:
    """`ip netns add` turns /run/netns into a mount, once; whoever causes that undoes it. (ismount() doesn't see a bind mount.)"""
    return any(line.split()[4] == str(NETNS) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def remove(name: str, unmount: bool) -> None:
    for netns in left(name):
        if not succeeds("ip", "netns", "del", netns):
            (NETNS / netns).unlink(missing_ok=True)  # a plain file: the machine was started anew meanwhile
    if unmount and is_mounted() and not any(NETNS.iterdir()):
        command("umount", "-n", NETNS)
