"""Clients in the field, unmodified, times servers in the field behind sidecar and shim: which revision each pair spoke."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

import yaml

from .pod import Pod
from .suite import node

HERE = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = HERE / "golden/matrix.txt"
# Servers that are asked at once; the clients of one come one after the other, as what they write may be in one file.
WORKERS = 3
# Of one cell, start of the client included.
PATIENCE = 120


class Words:
    """Replaces `$NAME` in strings of any document."""

    def __init__(self, **names):
        self.names = dict(os.environ) | names

    def __call__(self, value):
        if isinstance(value, str):
            return re.sub(r"\$([A-Z][A-Z0-9_]*)", lambda found: self.names[found[1]], value)
        if isinstance(value, list):
            return [self(entry) for entry in value]
        if isinstance(value, dict):
            return {name: self(entry) for name, entry in value.items()}
        return value


def workplace(root):
    """Files that the servers work on."""
    files, repository = root / "files", root / "repository"
    files.mkdir()
    (files / "canoe.txt").write_text("Two hulls, größer als einer\n")
    repository.mkdir()
    (repository / "canoe.txt").write_text("one hull\n")
    who = ["-c", "user.name=matrix", "-c", "user.email=matrix@example.com", "-c", "init.defaultBranch=main"]
    for command in (["init"], ["add", "."], ["commit", "-m", "The first canoe"]):
        subprocess.run(["git", *who, *command], cwd=repository, check=True, capture_output=True, timeout=30)


def judge(server, outcome, words):
    """What is wrong with what a driver found."""
    wrong = [f"no tool {tool}" for tool in server["tools"] if tool not in outcome["tools"]]
    for kind in ("calls", "resources", "prompts"):
        wanted, found = server.get(kind, []), outcome[kind]
        if len(wanted) != len(found):
            wrong.append(f"{len(found)} {kind} of {len(wanted)}")
        for want, got in zip(wanted, found):
            about = want.get("name") or want["uri"]
            text = json.dumps(got, ensure_ascii=False, sort_keys=True)
            wrong += [f"{about}: no {pattern!r} in {text[:600]}" for pattern in words(want["expect"]) if not re.search(pattern, text)]
            if kind == "calls" and bool(got.get("isError")) != want.get("fails", False):
                wrong.append(f"{about}: isError is {got.get('isError')}: {text[:600]}")
    return wrong


def drive(client, server, url, words):
    """The revision that was spoken and what is wrong."""
    plan = {
        "calls": [{"name": c["name"], "arguments": c["arguments"]} for c in server.get("calls", [])],
        "resources": [r["uri"] for r in server.get("resources", [])],
        "prompts": [{"name": p["name"], "arguments": p["arguments"]} for p in server.get("prompts", [])],
    }
    command = [*words(client["command"]), url, client["mode"], json.dumps(words(plan))]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return "none", [f"no end after {PATIENCE} s"]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return "none", [f"the driver ended with {done.returncode}: {done.stderr[-1500:]}"]
    outcome = json.loads(lines[-1])
    return outcome["revision"], judge(server, outcome, words)


def main(only=None):
    document = yaml.safe_load((HERE / "matrix.yaml").read_text())
    whole = os.environ.get("CELLS") == "all" or bool(only)
    clients, few = document["clients"], document["few"]
    names = {c["name"] for c in clients}
    assert names == {c for row in few.values() for c in row}, "the few cells leave a client out"
    assert few.keys() == {s["name"] for s in document["servers"]}, "the few cells leave a server out"
    servers = [s for s in document["servers"] if not only or not set(only) & {o["name"] for o in document["servers"]} or s["name"] in only]
    wanted = [c for c in clients if not only or not set(only) & names or c["name"] in only]
    work = pathlib.Path(tempfile.mkdtemp(prefix="mcp-matrix-"))
    try:
        workplace(work)
        program, *_ = node()
        words = {"NODE": program, "MODULES": f"{os.environ['MCP_NODE']}/node_modules", "CLIENTS": str(HERE / "clients"), "WORK": str(work)}
        with Pod("matrix", {s["name"]: Words(**words)(s["command"]) for s in servers}) as pod, ThreadPoolExecutor(WORKERS) as pool:
            words["SITE"] = f"http://127.0.0.1:{pod.site.server_port}"

            def row(server):
                cells = {}
                for client in wanted:
                    if whole or client["name"] in few[server["name"]]:
                        cell = f"{client['name']} {server['name']}".replace(" ", "-")
                        cells[client["name"]] = drive(client, server, pod.url(server["name"]), Words(CELL=cell, **words))
                return cells

            found = dict(zip((s["name"] for s in servers), pool.map(row, servers)))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return report(wanted, found, bool(only))


def report(clients, found, partial):
    cells = {}
    for server, row in found.items():
        for client, (revision, wrong) in row.items():
            cells[server, client] = "FAILED" if wrong else revision
            if wrong:
                print(f"--- {client} x {server}")
                for line in wrong:
                    print(f"    {line}")
    for server in found:
        print("".join(f"{server:<22}{c['name']:<20}{cells[server, c['name']]}\n" for c in clients if (server, c["name"]) in cells), end="")
    print(f"{sum(c != 'FAILED' for c in cells.values())} of {len(cells)} cells work")
    if partial:
        print("part of the matrix: not compared with the golden table")
        return sum(c == "FAILED" for c in cells.values())
    golden = dict(read(GOLDEN)) if GOLDEN.exists() else {}
    if os.environ.get("UPDATE"):
        golden |= cells
        GOLDEN.write_text("".join(f"{s:<22}{c:<20}{cell}\n" for (s, c), cell in sorted(golden.items())))
    different = [key for key, cell in cells.items() if golden.get(key) != cell]
    for key in different:
        print(f"{' x '.join(key)}: {cells[key]}, golden: {golden.get(key, 'nothing')}")
    return len(different)


def read(path):
    for line in path.read_text().splitlines():
        yield (line[:22].strip(), line[22:42].strip()), line[42:].strip()
