"""What a caller sends comes back as it was: random JSON in parts and metadata, through an agent that echoes it.

In the JSON bindings of 1.0 the text itself is the same. In 0.3, whose data parts are objects, the value is. Over gRPC
numbers are doubles, as its `Struct` has it: what comes back is the nearest double (documented)."""

import json
import os
import random
import sys
import uuid
from decimal import Decimal

from . import wire, wire03
from .pod import HERE, Pod, live

sys.path.insert(0, str(HERE))
from agent import raw_members  # noqa: E402  (the agent's way to cut JSON serves here too)

CASES = int(os.environ.get("CASES", "100"))
SEED = int(os.environ.get("SEED", "1"))
NUMBERS = ["0", "-0", "1", "1.0", "1.50", "-0.0", "0.1", "1e10", "1E-7", "9007199254740993", "-9223372036854775808", "18446744073709551615", "12345678901234567890123456789", "3.141592653589793238462643"]
STRINGS = ['""', '"text"', '"\\u0000\\u001f"', '"\\ud83d\\ude00"', '"😀 ünï"', '"\\/\\\\\\"\\n"', '"\\u2028"', '"kind"', '"2026-01-01T00:00:00Z"', '"TASK_STATE_COMPLETED"', '"AAEC"']
KEYS = ["", "a", "kind", "text", "data", "value", "raw", "url", "file", "metadata", "taskId", "task_id", "@type", "ключ", "a.b", "$", "__proto__", "role", "state", "parts"]
SPACES = ["", "", "", " ", "\n  "]


def value(rng, depth=0):
    """JSON text of some value."""
    kind = rng.choice("nnnssbtao" if depth < 4 else "nsb")
    if kind == "n":
        return rng.choice([*NUMBERS, str(rng.randint(-(10**20), 10**20)), repr(rng.uniform(-1e6, 1e6))])
    if kind == "s":
        return rng.choice(STRINGS)
    if kind == "b":
        return rng.choice(["true", "false", "null"])
    if kind == "o":
        return struct(rng, depth + 1)
    items = [value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return f"[{(',' + rng.choice(SPACES)).join(items)}]"


def struct(rng, depth=1):
    keys = rng.sample(KEYS, rng.randint(0, 5))
    members = [f"{json.dumps(k, ensure_ascii=rng.random() < 0.5)}:{rng.choice(SPACES)}{value(rng, depth)}" for k in keys]
    return "{" + ",".join(members) + "}"


def meaning(document):
    """What JSON text says: numbers as decimals, so that none is rounded."""
    return json.loads(document, parse_float=Decimal, parse_int=Decimal)


def doubles(document):
    return json.loads(document, parse_int=float)


def plain(part):
    """`metadata` that is empty says what absence says."""
    return {k: v for k, v in part.items() if (k, v) != ("metadata", {})}


class Json:
    """A binding of JSON, spoken in text so that nothing here re-types it."""

    def __init__(self, name, path, version):
        self.name, self.path, self.version = name, path, version

    def post(self, method, params):
        rpc = self.name.startswith("JSONRPC")
        if rpc:
            body, path = f'{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}', "/"
        else:
            body, path = params, self.path
        headers = {"Content-Type": "application/json", **({"A2A-Version": self.version} if self.version else {})}
        status, _, answer = wire.http_call("POST", path, headers, body.encode())
        text = answer.decode()
        assert status == 200, f"HTTP {status}: {text[:300]}"
        members = raw_members(text)
        if not rpc:
            return members
        assert "result" in members, text[:300]
        return raw_members(members["result"])


def parts_of(task):
    """Raw text of the artifact's parts and metadata, and of those of the first message in the history."""
    artifact = raw_members(elements(task["artifacts"])[0])
    message = raw_members(elements(task["history"])[0])
    return artifact["parts"], artifact.get("metadata", "{}"), message.get("parts", message.get("content")), message.get("metadata", "{}")


def elements(array):
    """The elements of a JSON array as text."""
    decoder, at, found = json.JSONDecoder(), 1, []
    while True:
        while array[at] in " \t\r\n,":
            at += 1
        if array[at] == "]":
            return found
        end = decoder.raw_decode(array, at)[1]
        found.append(array[at:end])
        at = end


def new_json(path):
    def case(rng):
        meta, part_meta, data = struct(rng), struct(rng), value(rng)
        parts = f'[{{"text":"echo"}},{{"data":{data},"metadata":{part_meta},"x-unknown":{value(rng)}}}]'
        message = f'{{"messageId":"{uuid.UUID(int=rng.getrandbits(128))}","role":"ROLE_USER","parts":{parts},"metadata":{meta}}}'
        task = Json("JSONRPC" if path == "/" else "HTTP+JSON", path, "1.0").post("SendMessage", f'{{"message":{message}}}')
        got = parts_of(raw_members(task["task"]))
        assert got == (parts, meta, parts, meta), f"sent {parts} {meta}\ngot {got}"

    return case


def old_json(path):
    proto = path != "/"

    def case(rng):
        meta, part_meta, data = struct(rng), struct(rng), struct(rng)
        inner = f'{{"data":{data}}}' if proto else data
        kind = "" if proto else '"kind":"data",'
        first = '{"text":"echo"}' if proto else '{"kind":"text","text":"echo"}'
        parts = f'[{first},{{{kind}"data":{inner},"metadata":{part_meta}}}]'
        role, key, more = ("ROLE_USER", "content", "") if proto else ("user", "parts", '"kind":"message",')
        message = f'{{{more}"messageId":"{uuid.UUID(int=rng.getrandbits(128))}","role":"{role}","{key}":{parts},"metadata":{meta}}}'
        result = Json("JSONRPC/0.3" if not proto else "HTTP+JSON/0.3", path, None).post("message/send", f'{{"message":{message}}}')
        task = raw_members(result["task"]) if proto else result
        got = [meaning(text) for text in parts_of(task)]
        want = [meaning(text) for text in (parts, meta, parts, meta)]
        for i in (0, 2):
            got[i], want[i] = [plain(p) for p in got[i]], [plain(p) for p in want[i]]
        assert got == want, f"sent {parts} {meta}\ngot {got}"

    return case


def grpc(kind):
    made = []

    def case(rng):
        made[:] = made or [kind()]
        binding = made[0]
        meta, data, part_meta = doubles(struct(rng)), doubles(struct(rng)), doubles(struct(rng))
        parts = [{"text": "echo"}, plain({"data": data, "metadata": part_meta})]
        answer = binding.call("send_message", {"message": wire03.message(parts, metadata=meta)})
        assert answer.fault is None, answer.fault
        artifact = answer.body["task"]["artifacts"][0]
        got = [plain(p) for p in artifact["parts"]], artifact.get("metadata", {})
        assert got == (parts, meta), f"sent {parts} {meta}\ngot {got}"

    return case


def across(rng):
    """Sent in 1.0, read in 0.3: what is no object is wrapped, as the SDKs do, and nothing is lost."""
    data, meta = value(rng), struct(rng)
    parts = f'[{{"text":"echo"}},{{"data":{data},"metadata":{meta}}}]'
    message = f'{{"messageId":"{uuid.UUID(int=rng.getrandbits(128))}","role":"ROLE_USER","parts":{parts}}}'
    sent = raw_members(Json("JSONRPC", "/", "1.0").post("SendMessage", f'{{"message":{message}}}')["task"])
    task = Json("JSONRPC/0.3", "/", None).post("tasks/get", f'{{"id":{sent["id"]}}}')
    part = meaning(elements(parts_of(task)[0])[1])
    bare, wrap = meaning(data), part["metadata"].pop("data_part_compat", False)
    assert part["kind"] == "data" and part["metadata"] == meaning(meta), f"sent {parts}\ngot {part}"
    assert wrap == (not isinstance(bare, dict)) and part["data"] == ({"value": bare} if wrap else bare), f"sent {parts}\ngot {part}"


KINDS = {
    "JSONRPC": new_json("/"),
    "HTTP+JSON": new_json("/message:send"),
    "GRPC": grpc(wire.Grpc),
    "JSONRPC/0.3": old_json("/"),
    "HTTP+JSON/0.3": old_json("/v1/message:send"),
    "GRPC/0.3": grpc(wire03.OldGrpc),
    "1.0 to 0.3": across,
}


def main(only=None):
    passed, failed = 0, 0
    with Pod(live(offer={"checkInputModes": False}), "transparency"):
        for name, case in KINDS.items():
            if only and name not in only:
                continue
            wrong = []
            for number in range(CASES):
                try:
                    case(random.Random(f"{SEED}-{number}"))
                except (AssertionError, ValueError, KeyError, TypeError, IndexError, OSError) as error:
                    wrong.append((number, f"{type(error).__name__}: {error}"))
            print(f"{name:<14} {CASES - len(wrong)} of {CASES} as they were sent (SEED={SEED})")
            for number, problem in wrong[:3]:
                print(f"--- {name} case {number}: {problem[:2000]}")
            passed, failed = passed + CASES - len(wrong), failed + len(wrong)
    sys.stdout.flush()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
