"""Images into the nodes' containerd, and containers' processes out of the pods."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import cgroups, node, oci
from .console import UserError, command
from .daemons import Daemons, start_time
from .settings import Cluster


def load(cluster: Cluster, daemons: Daemons, archives: list[Path]) -> list[str]:
    """Imports image archives on every node, the nodes in parallel; what a node has already is skipped. Returns the images' names."""
    images = {oci.name_and_digest(archive): archive.absolute() for archive in archives}

    def into(target: str) -> None:
        ctr = node.ctr(cluster, daemons, target)
        rows = (line.split() for line in command(*ctr, "images", "ls").splitlines()[1:])
        present = {(row[0], row[2]) for row in rows if len(row) > 2}
        for image, archive in images.items():
            if image not in present:
                command(*ctr, "images", "import", archive)

    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        list(pool.map(into, cluster.nodes))
    return [name for name, _ in images]


def pids(cluster: Cluster, name: str) -> list[int]:
    """The processes of a running container NAMESPACE/POD/CONTAINER (init and ephemeral ones too), its first one first."""
    namespace, pod, container = name.split("/")
    status = json.loads(command(*cluster.kubectl, "-n", namespace, "get", "pod", pod, "-o", "json"))["status"]
    kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    found = [state for kind in kinds for state in status.get(kind, []) if state["name"] == container]
    if not found:
        raise UserError(f"pod {namespace}/{pod} has no container {container}")
    identity = found[0].get("containerID", "").partition("://")[2]
    groups = [
        Path(folder)
        for folder, _, _ in os.walk(cgroups.ROOT / "pids" / cluster.name)
        if identity and Path(folder).name == identity
    ]
    members = [(start_time(pid), pid) for group in groups for pid in cgroups.processes(group)]
    alive = sorted((started, pid) for started, pid in members if started is not None)
    if not alive:
        raise UserError(f"container {name} isn't running")
    return [pid for _, pid in alive]
