"""The cluster's throw-away keys, certificates (EC P-256) and kubeconfigs."""

from __future__ import annotations

import base64
import json
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .console import command
from .settings import API_PORT, CP_IP, KUBERNETES_IP, Cluster, node_ip

DAYS = "3650"
EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
API_NAMES = (
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,"
    f"IP:127.0.0.1,IP:{KUBERNETES_IP},IP:{CP_IP}"
)


@dataclass(frozen=True)
class Leaf:
    name: str
    subject: str
    usage: str = "clientAuth"
    names: str = ""  # subjectAltName
    ca: str = "ca"


def _leaves(nodes: list[str]) -> list[Leaf]:
    leaves = [
        Leaf("apiserver", "/CN=kube-apiserver", "serverAuth", API_NAMES),
        Leaf("apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet-client"),
        Leaf("front-client", "/CN=front-proxy-client", ca="front"),
        Leaf("admin", "/O=system:masters/CN=admin"),
    ]
    leaves += [Leaf(part, f"/CN=system:{part}") for part in ("kube-controller-manager", "kube-scheduler", "kube-proxy")]
    for node in nodes:
        subject = f"/O=system:nodes/CN=system:node:{node}"
        leaves += [
            Leaf(f"node-{node}", subject),
            Leaf(f"kubelet-{node}", subject, "serverAuth", f"DNS:{node},IP:{node_ip(node)}"),
        ]
    return leaves


def _authority(folder: Path, name: str, common_name: str) -> None:
    command(
        "openssl", "req", "-x509", *EC_KEY, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", DAYS,
        "-subj", f"/CN={common_name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign", cwd=folder,
    )  # fmt: skip


def _sign(folder: Path, leaf: Leaf) -> None:
    request, extensions = folder / f"{leaf.name}.csr", folder / f"{leaf.name}.ext"
    command(
        "openssl", "req", *EC_KEY, "-keyout", f"{leaf.name}.key", "-out", request, "-subj", leaf.subject, cwd=folder
    )
    names = f"subjectAltName={leaf.names}\n" if leaf.names else ""
    extensions.write_text(f"keyUsage=critical,digitalSignature\nextendedKeyUsage={leaf.usage}\n{names}")
    command(
        "openssl", "x509", "-req", "-in", request, "-CA", f"{leaf.ca}.crt", "-CAkey", f"{leaf.ca}.key", "-days", DAYS,
        "-set_serial", f"0x{secrets.token_hex(8)}", "-extfile", extensions, "-out", f"{leaf.name}.crt", cwd=folder,
    )  # fmt: skip
    request.unlink()
    extensions.unlink()


def service_account_keys(folder: Path) -> None:
    """The pair that signs service-account tokens: sa.key, sa.pub."""
    command("openssl", "genrsa", "-out", "sa.key", "2048", cwd=folder)
    command("openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub", cwd=folder)


def _kubeconfig(path: Path, server: str, authority: dict[str, str], user: dict[str, str]) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "outrigger", "cluster": {"server": server} | authority}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "outrigger", "context": {"cluster": "outrigger", "user": "user"}}],
        "current-context": "outrigger",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1) + "\n")


def kubeconfig_by_token(path: Path, server: str, authority: Path, token: str) -> None:
    _kubeconfig(path, server, {"certificate-authority": str(authority)}, {"token": token})


def kubeconfig_by_certificate(path: Path, server: str, pki: Path, who: str) -> None:
    def data(file: str) -> str:
        return base64.b64encode((pki / file).read_bytes()).decode()

    user = {"client-certificate-data": data(f"{who}.crt"), "client-key-data": data(f"{who}.key")}
    _kubeconfig(path, server, {"certificate-authority-data": data("ca.crt")}, user)


def create(cluster: Cluster, local_port: int) -> None:
    """Everything in cluster.pki, and cluster.kubeconfig for programs outside the cluster's networks."""
    folder = cluster.pki
    folder.mkdir(mode=0o700)
    leaves = _leaves(cluster.nodes)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        accounts = pool.submit(service_account_keys, folder)
        list(pool.map(lambda a: _authority(folder, *a), [("ca", "kubernetes-ca"), ("front", "front-proxy-ca")]))
        list(pool.map(lambda leaf: _sign(folder, leaf), leaves))
        accounts.result()
    for leaf in leaves:
        if leaf.usage == "clientAuth" and leaf.ca == "ca":
            kubeconfig_by_certificate(
                folder / f"{leaf.name}.kubeconfig", f"https://{CP_IP}:{API_PORT}", folder, leaf.name
            )
    kubeconfig_by_certificate(cluster.kubeconfig, f"https://127.0.0.1:{local_port}", folder, "admin")
