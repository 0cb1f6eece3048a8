"""Bringing a cluster up and taking it down: the order of things."""

from __future__ import annotations

import os
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from . import addons, cgroups, components, containers, control_plane, host, lock, network, node, pki
from .console import Stages, UserError, command, succeeds, wait_for
from .daemons import Daemons
from .settings import Cache, Cluster, run_dir

NODE_SECONDS = 60  # until a node's namespaces and containerd are there
API_SECONDS = 120
READY_SECONDS = 120
DOWN_WAITS = 60  # seconds that `down` waits for an `up` that is at work
# Below the range that the kernel picks from for outgoing connections.
PORTS = range(20000, 32000)


def up() -> None:
    cluster, wanted = Cluster.planned(), addons.wanted()
    host.need_root()
    cgroups.check()
    with lock.held(cluster.name) as held:
        found = held.record()
        if lock.is_alive(found, cluster.name):
            raise UserError(f"a cluster is up already: {found}; e2e/cluster/down ends it")
        if found or lock.leftovers(cluster.name):
            print(f"cleaning up after a dead cluster: {found or 'nothing is known of it'}", flush=True)
            remove(cluster, found)
        record = lock.new_record(cluster.run)
        held.write(record)
        daemons = Daemons(cluster.run, cgroups.daemons(cluster.name))
        try:
            _bring_up(cluster, daemons, wanted)
        except BaseException:
            if not os.environ.get("KEEP"):
                remove(cluster, record, daemons)
                held.drop()
            print(f"up failed; logs are in {cluster.log}", flush=True)
            raise
        record.ready = True
        held.write(record)
    print(f"audit log {cluster.audit_log}")
    print(f"export KUBECONFIG={cluster.kubeconfig} PATH={cluster.cache.bin}:$PATH")


def _needed(cluster: Cluster, wanted: list[str]) -> list[str]:
    """The components of a cluster with these add-ons: no other add-on, and nothing that only people and tests call."""
    spare = {"crictl", "helm", *addons.known()} - set(wanted)
    return [name for name in components.all_components(cluster.cache.lane) if name not in spare]


def _bring_up(cluster: Cluster, daemons: Daemons, wanted: list[str]) -> None:
    stages = Stages()
    host.need(host.NODE_TOOLS)
    components.build(cluster.cache, _needed(cluster, wanted), quiet=True)
    images = {name: addons.image(cluster.cache, name) for name in [addons.SANDBOX, *wanted]}
    stages.done("programs and images are there")

    _new_run_dir(cluster)
    cluster.save()
    cgroups.create(cluster.name, cluster.nodes)
    network.create(cluster)
    control_plane.start_etcd(cluster, daemons)
    for name in cluster.nodes:
        node.configure(cluster, name)
        node.start_holder(cluster, daemons, name)
    port = free_port()
    pki.create(cluster, port)
    wait_for("etcd listens", NODE_SECONDS, lambda: network.listens(cluster.control_netns, control_plane.ETCD_PORT))
    control_plane.start_apiserver(cluster, daemons)
    control_plane.start_forward(cluster, daemons, port)
    stages.done("networks, certificates, etcd")

    for name in cluster.nodes:
        wait_for(f"namespaces of {name}", NODE_SECONDS, partial(node.is_prepared, cluster, name))
        node.start_containerd(cluster, daemons, name)
    for name in cluster.nodes:
        wait_for(f"containerd of {name} answers", NODE_SECONDS, partial(node.answers, cluster, daemons, name))
    containers.load(cluster, daemons, [images[addons.SANDBOX]])  # the kubelet wants only this one
    stages.done(f"containerd on {' '.join(cluster.nodes)}")

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(containers.load, cluster, daemons, [images[name] for name in wanted])
        wait_for_api(cluster, daemons)
        stages.done("API server is ready")
        for name in cluster.nodes:
            node.start_kubelet(cluster, daemons, name)
            node.start_proxy(cluster, daemons, name)
        control_plane.start_controller_manager(cluster, daemons)
        control_plane.start_scheduler(cluster, daemons)
        loading.result()  # a pod that starts before its image is there would wait in back-off
    addons.install(cluster, wanted)
    kubectl = cluster.kubectl
    # Before it exists, pods are refused.
    wait_for("default service account", READY_SECONDS, partial(succeeds, *kubectl, "get", "serviceaccount", "default"))
    for name in cluster.nodes:
        wait_for(f"node {name} registers", READY_SECONDS, partial(succeeds, *kubectl, "get", "node", name))
    command(*kubectl, "wait", "--for=condition=Ready", "node", "--all", f"--timeout={READY_SECONDS}s")
    stages.done("nodes are Ready")
    addons.wait_until_ready(cluster, wanted)
    stages.done(" ".join(["ready:", *cluster.nodes, *wanted]))


def _new_run_dir(cluster: Cluster) -> None:
    """The run directory with nothing in it: the last cluster's logs go now."""
    try:
        cluster.run.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{cluster.run} is no folder") from None
    if cluster.run.is_symlink() or cluster.run.stat().st_uid != os.geteuid():
        raise UserError(f"{cluster.run} is somebody else's: set OUTRIGGER_RUN to another place")
    if not cluster.record.exists() and any(path.name != "log" for path in cluster.run.iterdir()):
        raise UserError(f"{cluster.run} holds something else: set OUTRIGGER_RUN to another place")
    _empty(cluster.run)  # what a cluster left that ended with its machine
    command("rm", "-rf", "--one-file-system", cluster.log)
    cluster.log.mkdir()


def _empty(run: Path) -> None:
    """Removes a cluster's files but its logs; the record that says they are a cluster's goes last."""
    record = Cluster(run, Cache(run)).record
    if record.exists():
        command(
            "rm", "-rf", "--one-file-system", *(path for path in run.iterdir() if path.name not in ("log", record.name))
        )
        record.unlink()


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on. (Somebody may before we do: whoever starts a server on it must look.)"""
    for port in random.sample(PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise UserError(f"no free port from {PORTS.start} to {PORTS.stop - 1}")


def wait_for_api(cluster: Cluster, daemons: Daemons) -> None:
    def ready() -> bool:
        daemons.reap()
        for name in ("apiserver", "forward", "etcd"):  # a wrong flag ends it at once
            if not daemons.pid(name):
                raise UserError(f"{name} has ended:\n{daemons.last_words(name)}")
        return succeeds(*cluster.kubectl, "get", "--raw", "/readyz")

    wait_for("API server is ready", API_SECONDS, ready)


def remove(cluster: Cluster, record: lock.Record | None, daemons: Daemons | None = None) -> None:
    """Ends the cluster's processes and removes all it has on the machine, except for its logs. Works on half a cluster, and on none."""
    cgroups.kill(cluster.name, daemons.reap if daemons else None)
    network.remove(cluster.name, unmount=record is not None and not record.netns_was_mounted)
    cgroups.remove(cluster.name)
    _empty(Path(record.run) if record else cluster.run)


def down() -> None:
    host.need_root()
    began = time.monotonic()
    cluster = Cluster(run_dir(), Cache.from_env())
    with lock.held(cluster.name, DOWN_WAITS) as held:
        record = held.record()
        found = record or lock.leftovers(cluster.name)
        remove(cluster, record)
        held.drop()
    what = (
        f"down; logs are in {Path(record.run) / 'log' if record else cluster.log}" if found else "nothing to take down"
    )
    print(f"{time.monotonic() - began:7.1f} s  {what}")
