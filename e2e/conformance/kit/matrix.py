"""Clients in the field, unmodified, each over each binding: a table of what works."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import yaml

from .hook import Hook
from .pod import HERE, Pod, Reference, live
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


def main(only=None):
    document = yaml.safe_load((HERE / "clients/clients.yaml").read_text())
    clients = [c for c in document["clients"] if not only or c["name"] in only]
    waived = {(w["client"], w["binding"], op) for w in document["waivers"] for op in w["operations"]}
    if len(waived) != WAIVED:
        print(f"{len(waived)} waived cells, want {WAIVED}")
        return 1
    hook = Hook().url("matrix")
    jobs = [(c, b) for c in clients for b in BINDINGS if b not in c.get("lacks", {})]
    server = Reference() if os.environ.get("REFERENCE") else Pod(live(), "matrix")
    with server, ThreadPoolExecutor(WORKERS) as pool:
        programs = os.environ["CONFORMANCE_CLIENTS"]
        outcomes = list(pool.map(lambda job: drive(f"{programs}/{job[0]['name']}", job[1], hook), jobs))
    seen = {(c["name"], b): found for (c, b), found in zip(jobs, outcomes)}
    return report(clients, seen, waived)


def report(clients, seen, waived):
    counts, problems = {"passed": 0, "failed": 0}, []
    print(f"{'client':<20} {'binding':<10}" + "".join(f"{op:>11}" for op in OPERATIONS))
    for client in clients:
        for binding in BINDINGS:
            row = []
            for op in OPERATIONS:
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
