"""The kit itself: its matchers find what is wrong, and leave alone what is right. The protos are those of the SDK."""

import sys

from . import acts, docs, match, protos, transparency, wire03

GOOD = [
    ({"type": "string"}, "x"),
    ({"exists": True}, 0),
    ({"exists": False}, match.ABSENT),
    ({"a": {"absent": True}}, {}),
    ({"one_of": [1, 2]}, 2),
    ({"items": {"id": {"type": "string"}}}, [{"id": "x"}, {"id": "y"}]),
    ({"items": [{"id": "x"}]}, [{"id": "x"}, 7]),
    ({"any_of": [{"absent": True}, {"type": "array", "count": 0}]}, []),
    ({"all_of": [{"type": "string"}, {"matches": ".{3,}"}]}, "long"),
    ({"type": {"type": "string"}, "title": {"type": "string"}}, {"type": "t", "title": "u"}),
]
BAD = [
    ({"type": "string"}, 1),
    ({"type": "number"}, True),
    ({"type": "object"}, []),
    ({"exists": True}, match.ABSENT),
    ({"exists": True}, None),
    ({"a": {"absent": True}}, {"a": None}),
    ({"one_of": [1, 2]}, 3),
    ({"items": {"id": {"type": "string"}}}, [{"id": "x"}, {}]),
    ({"items": [{"id": "x"}, {"id": "y"}]}, [{"id": "x"}]),
    ({"any_of": [{"absent": True}, {"type": "array", "count": 0}]}, [1]),
    ({"all_of": [{"type": "string"}, {"matches": ".{9,}"}]}, "short"),
    ({"count_gte": 1}, []),
    ({"count_lte": 1}, [1, 2]),
    ({"starts_with": "1."}, "0.3"),
    ({"a": {"b": 1}}, {"a": {"b": 2}}),
    ({"a": 1}, []),
]
TASK = {"task": {"id": "t", "artifacts": [{"parts": [{"text": "a"}, {"text": "b"}]}, {"parts": [{"data": 1}]}]}}


def events(*states):
    return [{"statusUpdate": {"taskId": "t", "status": {"state": f"TASK_STATE_{s}"}}} for s in states]


def streams():
    answer = acts.wire.Answer(events=[TASK, *events("WORKING", "COMPLETED")])
    back = acts.wire.Answer(events=events("COMPLETED", "WORKING"))
    final = {"final_event": {"status": {"state": "TASK_STATE_COMPLETED"}}}
    yield "the last event", not acts.streamed(final, answer) and acts.streamed(final, back)
    yield "the order", not acts.streamed({"ordering": "monotonic_state"}, answer) and acts.streamed({"ordering": "monotonic_state"}, back)
    yield "the number", acts.streamed({"min_count": 4}, answer)
    first = {"events": [{"index": 0, "one_of": [{"task": {"id": {"exists": True}}}]}]}
    yield "the first event", not acts.streamed(first, answer) and acts.streamed(first, back)
    some = {"events": [{"match": "any_position", "artifact": {"exists": True}}]}
    yield "any event", acts.streamed(some, answer)


ID, OTHER = "78e84055-0a43-4527-943c-d78507660230", "acc965df-e3f1-4b3a-a91a-7b8dfe91fb41"
SHOWN = [
    ('{"a": 1, "b": "..."}', '{"b":[2],"a":1}', True),
    ('{"a": 1, "...": "..."}', '{"a":1,"b":2}', True),
    ('{"a": 1}', '{"a":1,"b":2}', False),
    ('{"a": 1}', '{"a":"1"}', False),
    ('["...", 3]', "[1,2,3]", True),
    ('["...", 2]', "[1,2,3]", False),
    ("[1]", "[1,2]", False),
    (f'["{ID}", "{ID}.2"]', f'["{OTHER}", "{OTHER}.2"]', True),
    (f'["{ID}", "{ID}.2"]', f'["{OTHER}", "{ID}.2"]', False),
    ('{"at": "2026-11-30T23:56:32.934Z"}', '{"at": "2027-01-01T00:00:00Z"}', True),
    ('{"at": "2026-11-30T23:56:32.934Z"}', '{"at": "soon"}', False),
    ("etag: W/...", 'etag: W/"1"', True),
    ("one\n...\nfour", "one\ntwo\nthree\nfour", True),
    ("one\nfour", "one\ntwo\nfour", False),
    ("one", "one\ntwo", False),
    ('data: {"a": "..."}', 'data: {"a":{"b":1}}', True),
    ('data: {"a": 1}', 'data: {"a":2}', False),
]


def transcript(shown, got):
    try:
        docs.Reader().output(shown, got)
        return True
    except docs.Differs:
        return False


def checks():
    for shown, got, same in SHOWN:
        yield f"a transcript that shows {shown!r} and gives {got!r}", transcript(shown, got) == same
    yield "commands", docs.commands("$ a \\\n  b\nx\n$ c '{\n}'\ny\n") == [["a \\\n  b", "x\n"], ["c '{\n}'", "y\n"]]
    for want, got in GOOD:
        yield f"{want} takes {match.show(got)}", not match.problems(want, got)
    for want, got in BAD:
        yield f"{want} refuses {match.show(got)}", match.problems(want, got)
    yield from streams()
    yield from protos.checks()
    yield "a path", match.find(TASK, "task.artifacts[*].parts[*]") == [{"text": "a"}, {"text": "b"}, {"data": 1}]
    yield "an index", match.find(TASK, "task.artifacts[0].parts[1].text") == ["b"]
    yield "until", acts.until("a.b in [X, Y]", {"a": {"b": "Y"}}) and not acts.until("a.b == X", {"a": {"b": "Y"}})
    yield "raw members", transparency.raw_members('{ "a" : {"b":1.0} , "c":[1, 2]}') == {"a": '{"b":1.0}', "c": "[1, 2]"}
    for data in ({"a": 1}, [1], None, "x"):
        for proto in (True, False):
            part = {"data": data, "metadata": {"k": 1}}
            yield f"{part} there and back", wire03.new_part(wire03.old_part(part, proto), proto) == part


def main(only=None):
    failed = [name for name, holds in checks() if not holds]
    print("\n".join(f"--- {name}" for name in failed))
    sys.stdout.flush()
    print(f"{len(list(checks())) - len(failed)} passed, {len(failed)} failed")
    return len(failed)
