"""The transcripts of the documents: each command is run, and what it prints must be what the document shows.

A block `console` has commands behind `$ `, each with its output below. Ids and times of the document stand for those of
the run: the first time an id is shown it is learned, and from then on commands and outputs mean the real one. `...`
stands for anything: as a text in JSON for any value, as a member or in a list for further ones, within a line for some
characters, as a line for some lines. A block `python NAME` is written to the file NAME. A comment `<!-- run: SCENE -->` starts the
pod of that scene anew.
"""

import json
import os
import pathlib
import re
import selectors
import subprocess
import sys
import tempfile
import time

from . import wire
from .pod import AGENT_PORT, HERE, Pod, live

ROOT = HERE.parent.parent
DOCUMENTS = ["docs/a2a.md", "docs/executor-contract.md"]
LIMIT = 30
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
BLOCK = re.compile(r"^<!-- run: (?P<scene>[\w-]+) -->$|^```(?P<label>console|python [\w.-]+)\n(?P<text>.*?)^```$", re.M | re.S)

CARD = {
    "name": "echo",
    "description": "Says what it is told",
    "version": "1.0.0",
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "echo", "name": "Echo", "description": "Says what it is told", "tags": ["echo"]}],
}


class Shell:
    """One bash for a document, so that what a command sets the next one has."""

    def __init__(self, folder, environment):
        self.child = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.reader = selectors.DefaultSelector()
        self.reader.register(self.child.stdout, selectors.EVENT_READ)

    def run(self, command):
        end = b"\x1f end of output\n"
        self.child.stdin.write(command.encode() + b"\nprintf '\\037 end of output\\n'\n")
        self.child.stdin.flush()
        out, deadline = b"", time.monotonic() + LIMIT
        while not out.endswith(end):
            if not self.reader.select(max(0, deadline - time.monotonic())):
                raise RuntimeError(f"no end after {LIMIT} s, only {out.decode(errors='replace')!r}")
            piece = os.read(self.child.stdout.fileno(), 65536)
            if not piece:
                raise RuntimeError("the shell ended")
            out += piece
        return out[: -len(end)].decode()

    def close(self):
        self.child.stdin.close()
        self.child.wait(LIMIT)
        self.child.stdout.close()


class Differs(Exception):
    """What came is not what is shown."""


class Reader:
    """Compares outputs, and learns which id stands for which."""

    def __init__(self):
        self.ids = {}

    def real(self, text):
        return ID.sub(lambda m: self.ids.get(m[0], m[0]), text)

    def text(self, shown, got, where):
        """One line or one string."""
        pieces = re.split(rf"(\.\.\.)|({TIME.pattern})|({ID.pattern})", shown)
        pattern, learned = "", []
        for piece in filter(None, pieces):
            if piece == "...":
                pattern += ".*?"
            elif TIME.fullmatch(piece):
                pattern += TIME.pattern
            elif ID.fullmatch(piece) and piece not in self.ids:
                pattern += f"({ID.pattern})"
                learned.append(piece)
            else:
                pattern += re.escape(self.ids.get(piece, piece))
        match = re.fullmatch(pattern, got)
        if not match:
            raise Differs(f"{where}: shown {self.real(shown)!r}, came {got!r}")
        self.ids.update(zip(learned, match.groups()))

    def value(self, shown, got, where="$"):
        if shown == "...":
            return
        if isinstance(shown, str) and isinstance(got, str):
            return self.text(shown, got, where)
        if isinstance(shown, dict) and isinstance(got, dict):
            open_ended = "..." in shown
            names = [name for name in shown if name != "..."]
            missing = [name for name in names if name not in got]
            more = [] if open_ended else [name for name in got if name not in shown]
            if missing or more:
                raise Differs(f"{where}: lacks {missing}, has {more} beside what is shown")
            for name in names:
                self.value(shown[name], got[name], f"{where}.{name}")
            return
        if isinstance(shown, list) and isinstance(got, list):
            cut = shown.index("...") if "..." in shown else None
            items = [item for item in shown if item != "..."]
            if len(items) > len(got) or (cut is None and len(items) != len(got)):
                raise Differs(f"{where}: {len(items)} shown, {len(got)} came")
            for i, item in enumerate(items):
                at = i if cut is None or i < cut else len(got) - len(items) + i
                self.value(item, got[at], f"{where}[{at}]")
            return
        if (type(shown), shown) != (type(got), got):
            raise Differs(f"{where}: shown {shown!r}, came {got!r}")

    def output(self, shown, got):
        try:
            return self.value(json.loads(shown), json.loads(got))
        except ValueError:
            pass
        shown_lines, lines = shown.rstrip("\n").split("\n"), got.replace("\r\n", "\n").rstrip("\n").split("\n")
        at = 0
        for n, line in enumerate(shown_lines):
            if line == "...":
                after = shown_lines[n + 1] if n + 1 < len(shown_lines) else None
                while at < len(lines) and not (after is not None and self.matches(after, lines[at])):
                    at += 1
                continue
            if at >= len(lines):
                raise Differs(f"line {n + 1}: shown {line!r}, nothing came")
            self.line(line, lines[at], f"line {n + 1}")
            at += 1
        if at < len(lines):
            raise Differs(f"came beside what is shown: {lines[at:]!r}")

    def matches(self, shown, got):
        ids = dict(self.ids)
        try:
            self.line(shown, got, "")
            return True
        except Differs:
            return False
        finally:
            self.ids = ids

    def line(self, shown, got, where):
        """JSON behind `data: ` is compared as such."""
        head, tail = ("data: ", shown[6:]) if shown.startswith("data: ") else ("", shown)
        if head and got.startswith(head):
            try:
                return self.value(json.loads(tail), json.loads(got[6:]), where)
            except ValueError:
                pass
        self.text(shown, got, where)


def commands(text):
    """Commands of a block, each with its output."""
    out, open_command = [], False
    for line in text.splitlines():
        if line.startswith("$ "):
            out.append([line[2:], ""])
            open_command = True
        elif open_command and is_open(out[-1][0]):
            out[-1][0] += "\n" + line
        else:
            open_command = False
            out[-1][1] += line + "\n"
    return out


def is_open(command):
    """Whether the command goes on in the next line: after a backslash, or within quotes."""
    return command.endswith("\\") or len(re.findall(r"(?<!\\)'", command)) % 2 == 1


def scene(name, folder):
    """The pod of a scene: its live document, and the agent's command."""
    echo = [sys.executable, "-u", str(ROOT / "examples/executors/python/agent.py")]
    common = {"card": CARD, "offer": {"checkInputModes": False}}
    if name == "echo":
        return live(**common, push={"enabled": True, "allow": []}), echo
    if name == "keys":
        keys = pathlib.Path(folder) / "keys"
        keys.mkdir(exist_ok=True)
        (keys / "alice").write_text("correct-horse-battery-staple")
        return live(**common, access={"apiKey": {"header": "X-API-Key", "folder": str(keys)}}), echo
    if name == "hand":
        return live(**common), [sys.executable, "-u", str(pathlib.Path(folder) / "hand.py")]
    raise RuntimeError(f"there is no scene {name!r}")


def run(document, folder):
    text = (ROOT / document).read_text()
    shell = Shell(folder, {"AGENT": f"http://{wire.HOST}:{wire.PORT}", "HANDLER": f"http://127.0.0.1:{AGENT_PORT}"})
    reader, pod, count, failures = Reader(), None, 0, []
    try:
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            if match["scene"]:
                if pod:
                    pod.__exit__()
                members, agent = scene(match["scene"], folder)
                pod = Pod(members, f"docs-{match['scene']}", agent=agent)
                pod.__enter__()
                shell.run(f"export TOKEN_FILE={pod.root}/run/outrigger/agent/token")
                continue
            if match["label"].startswith("python "):
                (pathlib.Path(folder) / match["label"].split(" ", 1)[1]).write_text(match["text"])
                continue
            for command, shown in commands(match["text"]):
                count += 1
                got = shell.run(reader.real(command))
                try:
                    reader.output(shown, got)
                except Differs as error:
                    failures.append(f"{document}:{line}: $ {command}\n  {error}\n  came: {got}")
    finally:
        if pod:
            pod.__exit__()
        shell.close()
    if not count:
        failures.append(f"{document} has no transcript")
    print(f"{document}: {count} commands, {len(failures)} failed")
    return failures


def main(only):
    failures = []
    for document in DOCUMENTS:
        if not only or any(word in document for word in only):
            with tempfile.TemporaryDirectory(prefix="docs-") as folder:
                failures += run(document, folder)
    for failure in failures:
        print(failure)
    return bool(failures)
