"""The kit's own judgement: that each kind of failure is seen as one."""

import contextlib
import io
import os
import pathlib
import tempfile

from . import matrix, suite
from .matrix import Words, judge

FIXTURES = [{"name": "a", "revisions": ["r"]}, {"name": "b", "revisions": ["r"], "lacks": {"ask-*": "it cannot"}}]
SETS = {"r": (["ping", "ask-user"], ["extra", "tasks-x"])}
GOOD = {("a", "r"): {"ping": [], "ask-user": [], "extra": []}, ("b", "r"): {"ping": [], "ask-user": ["no"], "extra": []}}

SERVER = {
    "name": "s",
    "tools": ["echo"],
    "calls": [{"name": "echo", "arguments": {}, "expect": ["Echo: $CELL"]}, {"name": "echo", "arguments": {}, "fails": True, "expect": []}],
    "resources": [{"uri": "x:y", "expect": ["text"]}],
}
OUTCOME = {
    "tools": ["echo", "more"],
    "calls": [{"content": [{"text": "Echo: me"}]}, {"content": [], "isError": True}],
    "resources": [{"contents": [{"text": "z"}]}],
    "prompts": [],
}


def change(document, path, value):
    """A copy with one value replaced."""
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = change(document[path[0]], path[1:], value)
    return copy


@contextlib.contextmanager
def golden(module, text):
    kept, update = module.GOLDEN, os.environ.pop("UPDATE", None)
    with tempfile.TemporaryDirectory() as folder:
        module.GOLDEN = pathlib.Path(folder) / "golden.txt"
        module.GOLDEN.write_text(text)
        try:
            yield
        finally:
            module.GOLDEN = kept
            os.environ.update({} if update is None else {"UPDATE": update})


def quietly(function, *arguments):
    with contextlib.redirect_stdout(io.StringIO()):
        return function(*arguments)


def suites():
    text = suite.table(FIXTURES, SETS, GOOD, ["tasks-*"])
    assert "1/1" in text and "2/2" in text and "tasks" not in text, text
    waiver = {"fixture": "a", "revision": "r", "scenario": "ping"}
    cases = [
        ("as it was", GOOD, [], 0),
        ("a scenario fails", change(GOOD, [("a", "r"), "ping"], ["why"]), [], 1),
        ("a scenario is gone", change(GOOD, [("a", "r")], {"ping": []}), [], 1),
        ("an unscored one fails", change(GOOD, [("b", "r"), "extra"], ["why"]), [], 1),
        ("what a server lacks does not count", change(GOOD, [("b", "r"), "ask-user"], []), [], 0),
        ("a waived one passes", GOOD, [waiver], 1),
    ]
    with golden(suite, text):
        for about, found, waivers, want in cases:
            failed = quietly(suite.report, FIXTURES, SETS, found, ["tasks-*"], waivers, False)
            assert failed == want, f"{about}: {failed}"
    checks = [{"id": "x", "status": "FAILURE", "description": "d"}, {"id": "y", "status": "WARNING"}, {"id": "z", "status": "SUCCESS"}]
    assert suite.verdict(checks) == ["x: d"]


def cells():
    words = Words(CELL="me")
    assert judge(SERVER, OUTCOME, words) == []
    for about, path, value in [
        ("a tool is missing", ["tools"], ["more"]),
        ("another result", ["calls", 0, "content", 0, "text"], "Echo: you"),
        ("an error where there should be none", ["calls", 0], {"content": [{"text": "Echo: me"}], "isError": True}),
        ("no error where there should be one", ["calls", 1], {"content": []}),
        ("a call is missing", ["calls"], OUTCOME["calls"][:1]),
        ("a resource is missing", ["resources"], []),
    ]:
        assert judge(SERVER, change(OUTCOME, path, value), words), about
    clients = [{"name": "c"}]
    with golden(matrix, f"{'s':<22}{'c':<20}2025-11-25\n"):
        for cell, want in [(("2025-11-25", []), 0), (("2026-07-28", []), 1), (("2025-11-25", ["wrong"]), 1)]:
            assert quietly(matrix.report, clients, {"s": {"c": cell}}, False) == want, cell


def main(_only=None):
    for check in (suites, cells):
        check()
        print(f"{check.__name__}: ok")
    return 0
