"""What runs in every cluster's pods: the pause image, and add-ons that are installed on demand (addons/NAME.yaml, image localhost/NAME:e2e)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from . import components, oci
from .console import UserError, command
from .settings import HERE, Cache, Cluster

SANDBOX = "pause"
# An add-on whose Deployment runs isn't ready yet when its API isn't: until then discovery fails for every client.
API_SERVICES = {"metrics-server": "v1beta1.metrics.k8s.io"}
READY_SECONDS = 120


def known() -> list[str]:
    return sorted(path.stem for path in (HERE / "addons").glob("*.yaml"))


def wanted() -> list[str]:
    names = os.environ.get("ADDONS", "coredns").split()
    if unknown := [name for name in names if name not in known()]:
        raise UserError(f"ADDONS: unknown {' '.join(unknown)}; there are: {' '.join(known())}")
    return names


def image(cache: Cache, name: str) -> Path:
    """The archive of a component's image, written if need be: the program alone, FROM scratch."""
    program = cache.bin / name
    built = program.resolve().parent.name  # NAME@KEY
    writer = hashlib.sha256(Path(oci.__file__).read_bytes()).hexdigest()[:8]
    place = cache.images / f"{built}-{writer}.tar"
    if not place.exists():
        contents = oci.Image(f"localhost/{name}:e2e", [f"/{name}"])
        contents.add_file(program, f"/{name}")
        contents.write(place)
        for old in components.oldest(cache.images.glob(f"{name}@*.tar")):
            old.unlink()
    return place


def build_images(cache: Cache) -> list[Path]:
    return [image(cache, name) for name in [SANDBOX, *known()]]


def install(cluster: Cluster, names: list[str]) -> None:
    for name in names:
        command(*cluster.kubectl, "apply", "--server-side", "-f", HERE / "addons" / f"{name}.yaml")


def wait_until_ready(cluster: Cluster, names: list[str]) -> None:
    for name in names:
        command(
            *cluster.kubectl,
            "-n",
            "kube-system",
            "rollout",
            "status",
            f"deployment/{name}",
            f"--timeout={READY_SECONDS}s",
        )
        if service := API_SERVICES.get(name):
            command(
                *cluster.kubectl,
                "wait",
                "--for=condition=Available",
                f"apiservice/{service}",
                f"--timeout={READY_SECONDS}s",
            )
