"""Clients in the field, unmodified, each over each binding: a table of what works."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import yaml

from .hook import Hook
from .pod import AGENT_PORT, HERE, Pod, Reference, live, reference
from .wire import HOST, PORT

BINDINGS = ["JSONRPC", "HTTP+JSON", "GRPC"]
OPERATIONS = ["send", "stream", "get", "list", "cancel", "subscribe", "push", "error"]
# Waived cells.
WAIVED = 0
# Drivers at once: each starts a runtime of its own.
WORKERS = 3
# Of one driver, start included.
PATIENCE = 120


def drive(program, binding, hook):
    """Outcomes of a driver by operation: None, or what is wrong."""
    command = [program, f"http://{HOST}:{PORT}", binding, hook]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        output, log = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        output, log = (error.stdout or b"").decode(), f"no end after {PATIENCE} s"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    found = {line["op"]: None if line["ok"] else str(line["detail"]) for line in lines}
    return {op: found.get(op, f"the driver did not get there: {log[-400:]}") for op in OPERATIONS}


def speaks_a2a(*versions):
    """A pod whose agent speaks A2A itself."""
    runtime = {"a2a": {"port": AGENT_PORT, "path": "/"}}
    return lambda: Pod(live(), f"matrix-a2a-{'-'.join(versions)}", runtime, agent=reference(AGENT_PORT, AGENT_PORT + 1, *versions))


# Name: how to start it, the clients, the operations. The first is what every run has, VARIANTS=all has the rest too.
VARIANTS = {
    "executor contract": (lambda: Pod(live(), "matrix"), None, OPERATIONS),
    "0.3 alone, for clients of 1.0": (
        lambda: Pod(live(offer={"versions": ["0.3"]}), "matrix-old"),
        ["python-v1", "js-v1"],
        [op for op in OPERATIONS if op not in ("list", "push")],
    ),
    "agent of A2A 1.0": (speaks_a2a("1.0"), None, OPERATIONS),
    "agent of A2A 0.3": (speaks_a2a("0.3"), None, OPERATIONS),
}


def variants():
    if os.environ.get("REFERENCE"):
        return {"the reference server": (Reference, None, OPERATIONS)}
    return VARIANTS if os.environ.get("VARIANTS") == "all" else dict(list(VARIANTS.items())[:1])


def main(only=None):
    document = yaml.safe_load((HERE / "clients/clients.yaml").read_text())
    waived = {(w["client"], w["binding"], op) for w in document["waivers"] for op in w["operations"]}
    if len(waived) != WAIVED:
        print(f"{len(waived)} waived cells, want {WAIVED}")
        return 1
    hook, failed = Hook().url("matrix"), 0
    for name, (server, names, operations) in variants().items():
        clients = [c for c in document["clients"] if c["name"] in (only or names or [c["name"]])]
        jobs = [(c, b) for c in clients for b in BINDINGS if b not in c.get("lacks", {})]
        with server(), ThreadPoolExecutor(WORKERS) as pool:
            programs = os.environ["CONFORMANCE_CLIENTS"]
            outcomes = list(pool.map(lambda job: drive(f"{programs}/{job[0]['name']}", job[1], hook), jobs))
        seen = {(c["name"], b): found for (c, b), found in zip(jobs, outcomes)}
        failed += report(name, clients, operations, seen, waived)
    return failed


def report(name, clients, operations, seen, waived):
    counts, problems = {"passed": 0, "failed": 0}, []
    print(f"{name}\n{'client':<20} {'binding':<10}" + "".join(f"{op:>11}" for op in operations))
    for client in clients:
        for binding in BINDINGS:
            row = []
            for op in operations:
                if binding in client.get("lacks", {}) or op in client.get("lacks", {}):
                    row.append("-")
                    continue
                problem = seen[client["name"], binding][op]
                cell = (client["name"], binding, op)
                good = bool(problem) if cell in waived else not problem
                counts["passed" if good else "failed"] += 1
                row.append("waived" if cell in waived and good else "ok" if good else "FAIL")
                if not good:
                    problems.append((*cell, problem or "is waived, but passes"))
            print(f"{client['library']:<20} {binding:<10}" + "".join(f"{cell:>11}" for cell in row))
    for client in clients:
        for what, why in client.get("lacks", {}).items():
            print(f"- {client['library']}: no {what}: {why}")
    for *cell, problem in problems:
        print(f"--- {' '.join(cell)}: {problem[:1500]}")
    sys.stdout.flush()
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] else 0
