"""The variant without pods: etcd and an API server on 127.0.0.1. Nothing in it needs root, and any number can run side by side.

For CRD schemas, CEL, server-side apply, watches, webhooks by URL, RBAC. Nothing collects garbage, sets a status or makes service
accounts here, unless CONTROLLERS names controllers to run.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import components, control_plane, pki
from .cluster import free_port
from .console import Stages, UserError, succeeds, wait_for
from .daemons import Daemons
from .settings import SERVICE_CIDR, Cache

READY_SECONDS = 120
ATTEMPTS = 3  # a free port may be somebody else's a moment later
PORT_TAKEN = "address already in use"


def _base() -> Path:
    return Path(os.environ.get("OUTRIGGER_LIGHT") or f"/tmp/outrigger-light-{os.geteuid()}").absolute()


def folder(name: str) -> Path:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,40}", name):
        raise UserError(f"{name!r} is no name: lower-case letters, digits, dots and dashes, at most 41")
    return _base() / name


@contextmanager
def _lock(run: Path) -> Iterator[None]:
    """One `up` or `down` of a name at a time."""
    run.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if run.parent.stat().st_uid != os.geteuid():
        raise UserError(f"{run.parent} is somebody else's: set OUTRIGGER_LIGHT to another place")
    with open(run.with_name(f".{run.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another `light` is at work on {run.name}") from None
        yield


def up(name: str) -> None:
    run, cache = folder(name), Cache.from_env()
    with _lock(run):
        daemons = Daemons(run)
        if running := [f"{daemon} (pid {daemons.pid(daemon)})" for daemon in daemons.names() if daemons.pid(daemon)]:
            raise UserError(f"{name} is up already: {', '.join(running)}; `light down {name}` ends it")
        stages = Stages()
        components.build(cache, ["kube", "etcd"], quiet=True)
        for attempt in range(ATTEMPTS):
            shutil.rmtree(run, ignore_errors=True)
            daemons = Daemons(run)
            try:
                _start(run, cache, daemons)
                break
            except UserError:
                _stop(run, daemons, keep_log=True)
                if attempt + 1 == ATTEMPTS or not any(
                    PORT_TAKEN in daemons.last_words(part, 50) for part in ("etcd", "apiserver")
                ):
                    raise
            except BaseException:
                _stop(run, daemons)
                raise
        stages.done(f"{name} is ready")
    print(f"export KUBECONFIG={run / 'kubeconfig'} PATH={cache.bin}:$PATH")


def _start(run: Path, cache: Cache, daemons: Daemons) -> None:
    for part in (run, run / "log", run / "pki"):
        part.mkdir(mode=0o700)
    etcd_port, peer_port, api_port = free_port(), free_port(), free_port()
    daemons.start("etcd", [cache.bin / "etcd", *control_plane.etcd_flags(run / "etcd", etcd_port, peer_port)])
    keys = run / "pki"
    pki.service_account_keys(keys)
    token = secrets.token_hex(16)
    (keys / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    daemons.start("apiserver", [
        cache.bin / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={api_port}", "--endpoint-reconciler-type=none",
        f"--cert-dir={keys}", f"--token-auth-file={keys}/tokens.csv", "--authorization-mode=RBAC", "--allow-privileged=true",
        f"--service-cluster-ip-range={SERVICE_CIDR}", "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={keys}/sa.key", f"--service-account-signing-key-file={keys}/sa.key",
        "--disable-admission-plugins=ServiceAccount",  # it would refuse pods, as nothing makes service accounts
        *control_plane.audit_flags(run / "log" / "audit.jsonl"), *control_plane.more_flags("APISERVER_FLAGS"),
    ])  # fmt: skip
    config = run / "kubeconfig"
    pki.kubeconfig_by_token(config, f"https://127.0.0.1:{api_port}", keys / "apiserver.crt", token)

    def ready() -> bool:
        daemons.reap()
        for part in daemons.names():  # a wrong flag, or a port that somebody else has taken
            if not daemons.pid(part):
                raise UserError(f"{part} has ended:\n{daemons.last_words(part)}")
        return succeeds(cache.bin / "kubectl", "--kubeconfig", config, "get", "--raw", "/readyz")

    wait_for("API server is ready", READY_SECONDS, ready)
    if controllers := os.environ.get("CONTROLLERS"):
        daemons.start("controller-manager", [
            cache.bin / "kube-controller-manager", f"--kubeconfig={config}", "--leader-elect=false", "--secure-port=0",
            f"--service-account-private-key-file={keys}/sa.key", f"--controllers={controllers}",
            *control_plane.more_flags("CONTROLLER_MANAGER_FLAGS"),
        ])  # fmt: skip


def _stop(run: Path, daemons: Daemons, keep_log: bool = False) -> None:
    for name in reversed(daemons.names()):
        if daemons.pid(name):
            daemons.kill(name, signal.SIGKILL)
    for path in run.iterdir() if run.exists() else []:
        if path.name != "log" or not keep_log:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not keep_log:
        shutil.rmtree(run, ignore_errors=True)


def down(name: str) -> None:
    run = folder(name)
    with _lock(run):
        _stop(run, Daemons(run))
        run.with_name(f".{run.name}.lock").unlink(missing_ok=True)
    with suppress(OSError):  # others are there
        run.parent.rmdir()
