#!/usr/bin/env python3
"""agent.py PORT: an agent of the executor contract that does what the text of the first message of a task says.

Its first word picks the behaviour. A follow-up inherits that of the first message. Standard library only."""

import base64
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# How long the work of `tck-long-running` takes: long enough to be seen at work, short enough for a test.
WORK = 1.0
# How long a turn that is to be cancelled waits at most.
PATIENCE = 120

# Turns at work that a DELETE has ended.
cancelled = {}


def artifact(parts, artifact_id="result", **more):
    return {"artifactId": artifact_id, "parts": parts, **more}


def first_text(turn):
    """The text that picks the behaviour."""
    said = [m for m in turn["task"]["history"] if m["role"] == "ROLE_USER"]
    message = said[0] if said else turn["message"]
    return next((p["text"] for p in message["parts"] if "text" in p), "")


def multi_turn(turn):
    # No question in words, so that the history holds the caller's messages and nothing else.
    return {"text": "all done"} if turn["text"] == "done" else {"state": "input-required"}


BEHAVIOURS = {
    "tck-complete-task": lambda turn: {"text": "Hello from the agent"},
    "tck-message-response": lambda turn: {"message": {"parts": [{"text": "Direct message response"}]}},
    "tck-task-failure": lambda turn: {"error": {"message": "this task fails as asked", "reason": "as_asked"}},
    "tck-reject-task": lambda turn: {"state": "rejected", "text": "rejected as asked"},
    "tck-input-required": lambda turn: {"state": "input-required", "text": "which one?"},
    "tck-auth-required": lambda turn: {"state": "auth-required", "text": "sign in first"},
    "tck-multi-turn": multi_turn,
    "tck-artifact-text": lambda turn: {"artifacts": [artifact([{"text": "generated text"}])]},
    "tck-artifact-data": lambda turn: {"artifacts": [artifact([{"data": {"key": "value", "count": 42}}])]},
    "tck-artifact-file": lambda turn: {
        "artifacts": [artifact([{"raw": base64.b64encode(b"file").decode(), "filename": "output.txt", "mediaType": "text/plain"}])]
    },
    "tck-artifact-file-url": lambda turn: {
        "artifacts": [artifact([{"url": "https://example.com/output.txt", "filename": "output.txt", "mediaType": "text/plain"}])]
    },
    # The parts and metadata that came, as an artifact.
    "echo": lambda turn: {"artifacts": [artifact(turn["message"]["parts"], metadata=turn["message"].get("metadata", {}))]},
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200, b"ready", "text/plain")

    def do_DELETE(self):
        cancelled.setdefault(self.headers["Outrigger-Turn"], threading.Event()).set()
        self.answer(200, b"{}")

    def do_POST(self):
        turn = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = (first_text(turn).split() or [""])[0]
        if name in BEHAVIOURS:
            self.say(BEHAVIOURS[name](turn))
        elif name == "tck-cancel":
            cancelled.setdefault(turn["turn"], threading.Event()).wait(PATIENCE)
            self.close_connection = True
        elif name == "tck-long-running":
            time.sleep(WORK)
            self.say({"text": "worked"})
        else:
            self.say({"text": turn["text"]})

    def say(self, document):
        self.answer(200, json.dumps(document).encode())

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
