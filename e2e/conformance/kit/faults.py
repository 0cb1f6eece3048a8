"""An agent that does all wrong, over every binding of both versions: what callers see, against a golden table."""

import difflib
import hashlib
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor

from outrigger_kit.processes import ADMIN_PORT

from . import wire, wire03
from .pod import HERE, Pod, live

FAULTS = [
    "fault-hang",
    "fault-hang-stream",
    "fault-crash",
    "fault-no-end",
    "fault-big-part",
    "fault-many-chunks",
    "fault-wrong-ids",
    "fault-wrong-ids-stream",
    "fault-append-to-nothing",
    "fault-after-end",
    "fault-invalid-json",
    "fault-invalid-answer",
    "fault-empty",
    "fault-half-closed",
]
GOLDEN = HERE / "golden/faults.txt"
WORKERS = 6
# Short, so that a hang is soon found out.
LIMITS = {"turnTimeoutMs": 2000, "streamIdleTimeoutMs": 2000}


def digest(artifact):
    """An artifact as its id, its text's length and hash."""
    said = "".join(part.get("text", str(part)) for part in artifact["parts"]).encode()
    return f"{artifact['artifactId']}[{len(said)} {hashlib.sha256(said).hexdigest()[:8]}]"


def shown(task):
    status = task["status"]
    said = status.get("message", {})
    reason = said.get("metadata", {}).get("outrigger.dev/reason")
    words = [status["state"].removeprefix("TASK_STATE_"), reason, *(digest(a) for a in task.get("artifacts", []))]
    return " ".join(w for w in words if w)


def unary(binding, fault):
    answer = binding.call("send_message", {"message": wire03.message([{"text": fault}])})
    return said(answer.fault) if answer.fault else result(answer.body)


def said(fault):
    return f"error {fault.name}"


def result(body):
    if "task" in body:
        return shown(body["task"])
    return f"message {digest({'artifactId': '-', **body['message']})}"


def streamed(binding, fault):
    """What a stream told, its chunks put together; and whether GetTask tells the same afterwards."""
    answer = binding.call("send_streaming_message", {"message": wire03.message([{"text": fault}])})
    if answer.fault:
        return said(answer.fault)
    kinds, task, seen = [], None, {}
    for event in answer.events:
        (kind, node), = event.items()
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)
        if kind == "task":
            task = node
        elif kind == "statusUpdate":
            task["status"] = node["status"]
        elif kind == "artifactUpdate":
            new = node["artifact"]
            old = seen.get(new["artifactId"]) if node.get("append") else None
            seen[new["artifactId"]] = {**new, "parts": [*(old["parts"] if old else []), *new["parts"]]}
        elif kind == "message":
            return f"{' '.join(kinds)}: {result(event)}"
        else:
            return f"{' '.join(kinds)}: {node}"
    told = shown({**task, "artifacts": [*task.get("artifacts", []), *seen.values()]})
    kept = binding.call("get_task", {"id": task["id"]})
    same = "" if kept.body and shown(kept.body) == told else f"; but GetTask: {kept.fault or shown(kept.body)}"
    # How often the agent's messages are put together in one event is a matter of timing; their order is not.
    return f"{re.sub(r'(statusUpdate artifactUpdate )+', 'statusUpdate artifactUpdate ', ' '.join(kinds))}: {told}{same}"


def repairs():
    _, _, body = wire.http_call("GET", "/metrics", port=ADMIN_PORT)
    found = re.findall(r'^outrigger_a2a_answer_repairs_total\{.*rule="(\w+)".*\} (\d+)', body.decode(), re.M)
    return [f"repaired {rule}: {count}" for rule, count in sorted(found) if count != "0"]


def main(only=None):
    bindings = [*wire.BINDINGS, *wire03.BINDINGS]
    jobs = [(fault, kind, mode) for fault in only or FAULTS for kind in bindings for mode in (unary, streamed)]

    def work(job):
        fault, kind, mode = job
        try:
            outcome = mode(kind(), fault)
        except Exception as error:  # noqa: BLE001  (an outcome like any other, in the table)
            outcome = f"{type(error).__name__}: {error}"
        return f"{fault:<24} {kind.name:<14} {'send' if mode is unary else 'stream':<7} {outcome}"

    with Pod(live(limits=LIMITS), "faults"), ThreadPoolExecutor(WORKERS) as pool:
        lines = [*pool.map(work, jobs), *repairs()]
    table = "\n".join(lines) + "\n"
    if os.environ.get("UPDATE"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(table)
    golden = GOLDEN.read_text() if GOLDEN.exists() else ""
    if only:
        print(table)
        return 0
    diff = list(difflib.unified_diff(golden.splitlines(), table.splitlines(), "golden/faults.txt", "now", lineterm="", n=0))
    print("\n".join(diff))
    sys.stdout.flush()
    missed = sum(line.startswith("-") and not line.startswith("---") for line in diff)
    print(f"{len(lines) - missed} passed, {missed + (not missed and len(diff))} failed")
    return 1 if diff else 0
