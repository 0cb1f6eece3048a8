"""The test bed's own test: every entry point, for real. One line per check; the exit status is 1 if any of them fails."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import lock
from .console import UserError, command, succeeds, wait_for
from .daemons import start_time
from .host_state import Footprint, differences, snapshot
from .network import enter
from .settings import HERE, Cluster, node_ip, run_dir

ADDONS = "coredns metrics-server"
PIP_PACKAGE, NPM_PACKAGE = "semver==3.0.4", "semver@7.7.3"
KUBELET_PORT = 10250
NAME = "outrigger"
POD_SECONDS = 90
FAULT_SECONDS = 60
BURY_SECONDS = 5


class Checks:
    """Runs checks and remembers which failed. One that fails doesn't end the others."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed = 0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except (UserError, AssertionError, subprocess.SubprocessError, OSError, LookupError, ValueError) as problem:
            self.failed.append(name)
            verdict, why = "FAILED", f"\n{problem or type(problem).__name__}"
        else:
            self.passed += 1
            verdict, why = "ok", ""
        print(f"{time.monotonic() - began:7.1f} s  {verdict:6} {name}{why}", flush=True)


def tool(*words: object, **variables: str) -> str:
    """One of the test bed's own commands."""
    return command(HERE / str(words[0]), *words[1:], env=os.environ | variables)


def expect(condition: object, message: object) -> None:
    if not condition:
        raise AssertionError(message)


def main() -> int:
    with lock.held(NAME) as held:
        if lock.is_alive(held.record(), NAME):
            raise UserError(f"a cluster is up: {held.record()}; the self-test wants to bring up its own")
    tool("down")
    check, began = Checks(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outrigger-selftest-") as folder:
        try:
            _programs(check)
            before = snapshot()
            archives = _images(check, Path(folder))
            with check("up: two nodes, add-ons"):
                print(tool("up", NODES="2", ADDONS=ADDONS), end="")
            if not check.failed:
                _in_cluster(check, archives)
                _down(check, before)
            _crashes(check)
            _light(check, Path(folder))
            with check("the machine is as it was before all this"):
                expect(not (found := differences(before, snapshot())), "\n".join(found))
        finally:
            tool("down")
    print(
        f"{time.monotonic() - began:7.1f} s  {check.passed} checks passed, {len(check.failed)} failed {'; '.join(check.failed)}".rstrip()
    )
    return 1 if check.failed else 0


def _programs(check: Checks) -> None:
    with check("build: all programs are there"):
        tool("build")


def _images(check: Checks, folder: Path) -> list[Path]:
    python, node = folder / "probe.tar", folder / "npm.tar"
    make = {
        python: ("image-python", python, "localhost/probe:e2e", "--file", f"{HERE}/fixtures/probe.py=/app/probe.py", "--script",
                 "/app/probe.py", PIP_PACKAGE),
        node: ("image-node", node, "localhost/npm:e2e", "--program", "semver", NPM_PACKAGE),
    }  # fmt: skip
    offline = {"PIP_NO_INDEX": "1", "npm_config_offline": "true"}
    for archive, words in make.items():
        with check(f"{words[0]}: makes an image, keeps it, and makes the same one again without a package index"):
            first = tool(*words).split()[1]
            again = tool(*words, **offline)
            expect(again.split()[1] == first and "unchanged" in again, again)
            archive.unlink()
            anew = tool(*words, **offline)
            expect(anew.split()[1] == first and "written" in anew, f"{first} became {anew}")
    with check("image: the same bytes twice"):
        words = (
            "localhost/echo:e2e",
            "--program",
            "/bin/echo",
            "--text",
            "/etc/note=hello",
            "--entrypoint",
            "/bin/echo",
        )
        for name in ("one.tar", "two.tar"):
            tool("image", folder / name, *words)
        expect((folder / "one.tar").read_bytes() == (folder / "two.tar").read_bytes(), "they differ")
    return list(make)


def _in_cluster(check: Checks, archives: list[Path]) -> None:
    cluster = Cluster.running()
    kubectl = cluster.kubectl

    def k(*words: object) -> str:
        return command(*kubectl, *words)

    def get(*words: object) -> dict:
        return json.loads(k("get", *words, "-o", "json"))

    with check("both nodes are Ready, and of the version asked for"):
        nodes = {node["metadata"]["name"]: node["status"] for node in get("nodes")["items"]}
        expect(sorted(nodes) == ["n1", "n2"], nodes.keys())
        expect(all(_ready(node) for node in nodes.values()), nodes)
        expect(all(f"v{cluster.cache.lane}." in node["nodeInfo"]["kubeletVersion"] for node in nodes.values()), nodes)
    with check("a second up fails at once and names the holder"):
        second = subprocess.run([HERE / "up"], capture_output=True, text=True, timeout=30)
        expect(second.returncode == 1 and re.search(r"up already: started .* by pid \d+", second.stderr), second)
    with check("load: images on every node; what is there already is skipped"):
        tool("load", *archives)
        tool("load", *archives)
    with check("a Deployment of 2 spreads over both nodes"):
        k("apply", "-f", HERE / "fixtures" / "web.yaml")
        k("rollout", "status", "deployment/web", f"--timeout={POD_SECONDS}s")
        placed = {pod["spec"]["nodeName"] for pod in get("pods", "-l", "app=web")["items"]}
        expect(placed == {"n1", "n2"}, placed)
    k("apply", "-f", HERE / "fixtures" / "pods.yaml")
    for pod, what, wanted in (
        ("client", "both replicas answer through the Service's DNS name", None),
        ("sidecar", "a native sidecar serves the main container and ends after it", "sidecar"),
        ("pip", "a pip package's program runs, without root, on a read-only root", "2.0.0"),
        ("npm", "an npm package's program runs", "2.0.0"),
    ):
        with check(what):
            k("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{pod}", f"--timeout={POD_SECONDS}s")
            output = k("logs", pod).strip()
            answers = {item["metadata"]["name"] for item in get("pods", "-l", "app=web")["items"]}
            expect(output == wanted if wanted else set(output.split()) == answers, output)
    with check("the audit log tells user, verb, resource and dry runs of every request"):
        k("create", "configmap", "dry", "--dry-run=server")
        events = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
        created = [event for event in events if event["verb"] == "create" and event["user"]["username"] == "admin"]
        expect(any(event["objectRef"]["resource"] == "deployments" for event in created), "no create of deployments")
        dry = [
            event
            for event in created
            if event["objectRef"]["resource"] == "configmaps" and "dryRun=All" in event["requestURI"]
        ]
        expect(len(dry) == 1 and dry[0]["responseStatus"]["code"] == 201, dry)
    with check("metrics-server measures both nodes"):
        expect(len(k("top", "nodes", "--no-headers").splitlines()) == 2, "not two lines")
    web = get("pods", "-l", "app=web", "--field-selector=spec.nodeName=n2")["items"][0]["metadata"]["name"]
    with check("exec and port-forward reach a pod on n2"):
        expect(k("exec", web, "--", "python3", "-c", "print(6 * 7)").strip() == "42", "exec")
        expect(_port_forward(kubectl, web) == web, "port-forward")
    _faults(check, cluster, k, get, web)


def _faults(check: Checks, cluster: Cluster, k: Callable[..., str], get: Callable[..., dict], web: str) -> None:
    def ready(node: str) -> bool:
        return _ready(get("node", node)["status"])

    with check("fault: a killed container is started again"):
        expect("probe.py serve" in tool("fault", "pids", f"default/{web}/web"), "its processes")
        tool("fault", "kill", f"default/{web}/web")
        wait_for(
            "restart count 1",
            FAULT_SECONDS,
            lambda: _restarts(get("pod", web)) == 1 and _ready(get("pod", web)["status"]),
        )
    with check("fault: a kubelet killed by its pid file makes the node NotReady; started again it is Ready"):
        os.kill(int((cluster.run / "pid" / "kubelet-n2").read_text()), signal.SIGKILL)
        wait_for("n2 is NotReady", FAULT_SECONDS, lambda: not ready("n2"))
        expect(ready("n1"), "n1 isn't Ready either")
        tool("fault", "start", "kubelet-n2")
        wait_for("n2 is Ready", FAULT_SECONDS, lambda: ready("n2"))
    with check("fault: link-down cuts a node off, link-up heals it"):
        expect(_reaches(cluster, "n2"), "n2 isn't reached at the start")
        tool("fault", "link-down", "n2")
        expect(not _reaches(cluster, "n2") and _reaches(cluster, "n1"), "n2 is reached, or n1 isn't")
        tool("fault", "link-up", "n2")
        wait_for("n2 is reached", FAULT_SECONDS, lambda: _reaches(cluster, "n2"))
    with check("fault: the API server killed and started; paused and resumed"):
        tool("fault", "kill", "apiserver")
        expect(not succeeds(*cluster.kubectl, "get", "--raw", "/readyz"), "it answers")
        tool("fault", "start", "apiserver")
        wait_for("it answers", FAULT_SECONDS, lambda: succeeds(*cluster.kubectl, "get", "--raw", "/readyz"))
        tool("fault", "pause", "apiserver")
        expect(not succeeds(*cluster.kubectl, "get", "--raw", "/readyz", "--request-timeout=1s"), "it answers")
        tool("fault", "resume", "apiserver")
        wait_for("it answers", FAULT_SECONDS, lambda: succeeds(*cluster.kubectl, "get", "--raw", "/readyz"))


def _down(check: Checks, before: dict[str, dict[str, str]]) -> None:
    footprint = Footprint.of(NAME)
    with check("down, and again when nothing runs"):
        expect(len(footprint.processes) > 15 and len(footprint.namespaces) > 10, footprint)
        tool("down")
        expect("nothing" in tool("down"), "it found something")
    with check("nothing is left: processes, namespaces, mounts, cgroups, files"):
        _nothing_remains(footprint)
    with check("sysctls, mounts, links, routes, packet filter as before"):
        expect(not (found := differences(before, snapshot())), "\n".join(found))


def _nothing_remains(footprint: Footprint) -> None:
    """At once, but for ended processes that the machine's init has yet to bury: they still count as being in their namespaces."""
    end = time.monotonic() + BURY_SECONDS
    while (found := footprint.remains(NAME, run_dir())) and time.monotonic() < end:
        time.sleep(0.1)
    expect(not found, "\n".join(found))


def _crashes(check: Checks) -> None:
    for number, what in ((signal.SIGKILL, "killed"), (signal.SIGTERM, "terminated")):
        with check(
            f"an up that is {what} half-way: {'the next one cleans up' if number == signal.SIGKILL else 'it cleans up itself'}"
        ):
            environment = os.environ | {"NODES": "1", "ADDONS": ""}
            with subprocess.Popen(
                [HERE / "up"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
            ) as half:
                assert half.stdout
                seen = next((line for line in half.stdout if "containerd on n1" in line), None)
                footprint = Footprint.of(NAME)
                half.send_signal(number)
                half.communicate(timeout=60)
            expect(seen and footprint.processes, "it didn't get half-way")
            if number == signal.SIGKILL:
                expect(lock.leftovers(NAME), "nothing was left, so nothing is proved")
                expect("cleaning up after a dead cluster: started" in tool("up", NODES="1", ADDONS=""), "no word of it")
                tool("down")
            _nothing_remains(footprint)


def _light(check: Checks, folder: Path) -> None:
    variables = {"OUTRIGGER_LIGHT": str(folder / "light"), "CONTROLLERS": "namespace-controller"}
    names = ("one", "two")
    kubectl = {
        name: (Cluster.planned().cache.bin / "kubectl", "--kubeconfig", folder / "light" / name / "kubeconfig")
        for name in names
    }
    pids: list[int] = []
    with check("light: two side by side, without any capability"):
        powerless = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
        ups = [subprocess.Popen([*powerless, HERE / "light", "up", name], env=os.environ | variables) for name in names]
        expect([up.wait(120) for up in ups] == [0, 0], "up failed")
        pids += [int(file.read_text()) for name in names for file in (folder / "light" / name / "pid").iterdir()]
        expect(len(pids) == 6, pids)
        command(*kubectl["one"], "create", "namespace", "only-here")
        expect(not succeeds(*kubectl["two"], "get", "namespace", "only-here"), "the other one has it too")
    with check("light: CONTROLLERS run, and the audit log is written"):
        command(*kubectl["one"], "delete", "namespace", "only-here", "--timeout=60s")
        expect(
            '"verb":"delete"' in (folder / "light" / "one" / "log" / "audit.jsonl").read_text(), "no delete in the log"
        )
    with check("light: down leaves nothing"):
        for name in names:
            tool("light", "down", name, **variables)
        expect(not (folder / "light").exists(), "files")
        expect(not (alive := [pid for pid in pids if start_time(pid)]), alive)


def _ready(status: dict) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions", [])
    )


def _restarts(pod: dict) -> int:
    return sum(container["restartCount"] for container in pod["status"].get("containerStatuses", []))


def _reaches(cluster: Cluster, node: str) -> bool:
    """Whether the control plane gets a connection to the node's kubelet."""
    probe = f": < /dev/tcp/{node_ip(node)}/{KUBELET_PORT}"
    return succeeds(*enter(cluster.control_netns), "timeout", "2", "bash", "-c", probe)


def _port_forward(kubectl: list[str], pod: str) -> str:
    words = [*kubectl, "port-forward", f"pod/{pod}", ":8080", "--address=127.0.0.1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as forward:
        try:
            assert forward.stdout
            line = forward.stdout.readline()
            port = re.search(r"127\.0\.0\.1:(\d+)", line)
            expect(port, line)
            assert port
            with socket.create_connection(("127.0.0.1", int(port[1])), timeout=10) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                answer = b"".join(iter(lambda: connection.recv(4096), b""))
            return answer.partition(b"\r\n\r\n")[2].decode()
        finally:
            forward.terminate()
