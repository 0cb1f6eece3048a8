"""How etcd, the API server, the controller manager and the scheduler are started."""

from __future__ import annotations

import os
import shlex
import sys

from . import network
from .daemons import Daemons
from .settings import API_PORT, CP_IP, HERE, SERVICE_CIDR, TEMPLATES, Cluster

ETCD_PORT, ETCD_PEER_PORT = 2379, 2380
AUDIT_LOG_MB = 1024  # per file; the file before is kept
# A killed node is NotReady after 20 s, and the autoscaler answers within seconds.
QUICK = (
    "--node-monitor-grace-period=20s",
    "--horizontal-pod-autoscaler-sync-period=5s",
    "--horizontal-pod-autoscaler-downscale-stabilization=10s",
    "--horizontal-pod-autoscaler-initial-readiness-delay=5s",
    "--horizontal-pod-autoscaler-cpu-initialization-period=10s",
)


def more_flags(variable: str) -> list[str]:
    """Flags the user adds by the environment."""
    return shlex.split(os.environ.get(variable, ""))


def etcd_flags(data: object, port: int, peer_port: int) -> list[object]:
    """A throw-away store, so no fsync."""
    client = f"http://127.0.0.1:{port}"
    return [
        "--data-dir", data, "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", f"http://127.0.0.1:{peer_port}", "--unsafe-no-fsync", "--log-level", "warn",
    ]  # fmt: skip


def audit_flags(path: object) -> list[str]:
    """Every request is in the file before its answer is sent (blocking mode)."""
    return [
        f"--audit-policy-file={TEMPLATES / 'audit-policy.yaml'}", f"--audit-log-path={path}", "--audit-log-mode=blocking",
        f"--audit-log-maxsize={AUDIT_LOG_MB}", "--audit-log-maxbackup=1",
    ]  # fmt: skip


def _start(cluster: Cluster, daemons: Daemons, name: str, program: str, *flags: object) -> None:
    daemons.start(name, [*network.enter(cluster.control_netns), cluster.cache.bin / program, *flags])


def start_etcd(cluster: Cluster, daemons: Daemons) -> None:
    _start(cluster, daemons, "etcd", "etcd", *etcd_flags(cluster.run / "etcd", ETCD_PORT, ETCD_PEER_PORT))


def start_apiserver(cluster: Cluster, daemons: Daemons) -> None:
    pki = cluster.pki
    _start(
        cluster, daemons, "apiserver", "kube-apiserver",
        f"--advertise-address={CP_IP}", f"--secure-port={API_PORT}", f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--service-cluster-ip-range={SERVICE_CIDR}", "--allow-privileged=true",
        "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
        f"--client-ca-file={pki}/ca.crt", f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-certificate-authority={pki}/ca.crt", f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet.key", "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/sa.pub", f"--service-account-signing-key-file={pki}/sa.key",
        # It dials webhooks' and APIServices' pods itself, so that its namespace needs no kube-proxy.
        "--enable-aggregator-routing=true", f"--requestheader-client-ca-file={pki}/front.crt",
        "--requestheader-allowed-names=front-proxy-client", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front-client.crt", f"--proxy-client-key-file={pki}/front-client.key",
        *audit_flags(cluster.audit_log), *more_flags("APISERVER_FLAGS"),
    )  # fmt: skip


def start_controller_manager(cluster: Cluster, daemons: Daemons) -> None:
    config = f"{cluster.pki}/kube-controller-manager.kubeconfig"
    _start(
        cluster, daemons, "controller-manager", "kube-controller-manager",
        f"--kubeconfig={config}", f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1", "--leader-elect=false", "--use-service-account-credentials=true",
        # Each controller fetches a token of its own; at the default of 20 requests a second that alone takes 5 s.
        "--kube-api-qps=300", "--kube-api-burst=500",
        f"--service-account-private-key-file={cluster.pki}/sa.key", f"--root-ca-file={cluster.pki}/ca.crt",
        f"--cluster-signing-cert-file={cluster.pki}/ca.crt", f"--cluster-signing-key-file={cluster.pki}/ca.key",
        "--allocate-node-cidrs=false", f"--service-cluster-ip-range={SERVICE_CIDR}",
        *QUICK, *more_flags("CONTROLLER_MANAGER_FLAGS"),
    )  # fmt: skip


def start_scheduler(cluster: Cluster, daemons: Daemons) -> None:
    config = f"{cluster.pki}/kube-scheduler.kubeconfig"
    _start(
        cluster, daemons, "scheduler", "kube-scheduler",
        f"--kubeconfig={config}", f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1", "--leader-elect=false",
    )  # fmt: skip


def start_forward(cluster: Cluster, daemons: Daemons, port: int) -> None:
    """127.0.0.1:PORT of the machine leads to the API server, for programs outside the cluster's networks."""
    program = (sys.executable, HERE / "testbed" / "forward.py")
    daemons.start("forward", [*program, port, network.NETNS / cluster.control_netns, API_PORT])
