#!/usr/bin/env python3
"""agent.py PORT: an agent of the executor contract that does what the text of the first message of a task says.

Its first word picks the behaviour; a follow-up inherits that of the first message. All three ways to answer are there:
JSON, a stream of events, and 202 with events posted later. Standard library only."""

import base64
import http.client
import json
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# How long the work of `tck-long-running` takes: long enough to be seen at work, short enough for a test.
WORK = 1.0
# How long a turn that is to be cancelled, or that hangs, waits at most.
PATIENCE = 120
CHUNKS, BIG = 10_000, 1 << 20

# Turns at work that a DELETE may end.
cancelled = {}


def ended(turn):
    return cancelled.setdefault(turn["turn"], threading.Event())


def artifact(parts, **more):
    return {"artifactId": "result", "parts": parts, **more}


def text(words, **more):
    return artifact([{"text": words}], **more)


def raw_members(document):
    """The members of a JSON object as the text that they are."""
    found, decoder, at = {}, json.JSONDecoder(), document.index("{") + 1
    while True:
        while document[at] in " \t\r\n,":
            at += 1
        if document[at] == "}":
            return found
        key, at = decoder.raw_decode(document, at)
        while document[at] in " \t\r\n:":
            at += 1
        end = decoder.raw_decode(document, at)[1]
        found[key], at = document[at:end], end


def first_text(turn):
    """The text that picks the behaviour."""
    said = [m for m in turn["task"]["history"] if m["role"] == "ROLE_USER"]
    message = said[0] if said else turn["message"]
    return next((p["text"] for p in message["parts"] if "text" in p), "")


def multi_turn(turn):
    # No question in words, so that the history holds the caller's messages and nothing else.
    return {"text": "all done"} if turn["text"] == "done" else {"state": "input-required"}


FILE = {"filename": "output.txt", "mediaType": "text/plain"}

# One answer as JSON.
ANSWERS = {
    "tck-complete-task": lambda turn: {"text": "Hello from the agent"},
    "tck-message-response": lambda turn: {"message": {"parts": [{"text": "Direct message response"}]}},
    "tck-task-failure": lambda turn: {"error": {"message": "this task fails as asked", "reason": "as_asked"}},
    "tck-reject-task": lambda turn: {"state": "rejected", "text": "rejected as asked"},
    "tck-input-required": lambda turn: {"state": "input-required", "text": "which one?"},
    "tck-auth-required": lambda turn: {"state": "auth-required", "text": "sign in first"},
    "tck-multi-turn": multi_turn,
    "tck-artifact-text": lambda turn: {"artifacts": [text("generated text")]},
    "tck-artifact-data": lambda turn: {"artifacts": [artifact([{"data": {"key": "value", "count": 42}}])]},
    "tck-artifact-file": lambda turn: {"artifacts": [artifact([{"raw": base64.b64encode(b"file").decode(), **FILE}])]},
    "tck-artifact-file-url": lambda turn: {"artifacts": [artifact([{"url": "https://example.com/output.txt", **FILE}])]},
    "fault-big-part": lambda turn: {"artifacts": [text("x" * BIG)]},
    "fault-wrong-ids": lambda turn: {
        "message": {"messageId": "m", "role": "ROLE_USER", "taskId": "no-task", "contextId": "no-context", "parts": [{"text": "mine"}]}
    },
    "fault-empty": lambda turn: {"unknown": True},
}


def chunks(turn):
    yield {"status": "at work"}
    yield {"artifact": text("one "), "append": False}
    yield {"artifact": text("two "), "append": True}
    yield {"artifact": text("three"), "append": True, "last": True}
    yield {"state": "completed"}


def wait(turn):
    yield {"status": "waits to be cancelled"}
    ended(turn).wait(PATIENCE)


def many(turn):
    for i in range(CHUNKS):
        yield {"artifact": text(f"{i % 10}"), "append": i > 0}
    yield {"state": "completed"}


def wrong_ids(turn):
    yield {"artifact": text("mine"), "taskId": "no-task", "contextId": "no-context"}
    yield {"state": "completed", "taskId": "no-task"}


def after_end(turn):
    yield {"artifact": text("kept")}
    yield {"state": "completed"}
    yield {"artifact": text("too late")}
    yield {"state": "failed", "text": "too late"}


# Events of a stream; text is sent as it is, and a function is done to the connection.
STREAMS = {
    "tck-stream-basic": lambda turn: [{"status": "at work"}, {"artifact": text("generated output"), "last": True}, {"state": "completed"}],
    "tck-stream-chunked": chunks,
    "tck-cancel": wait,
    "fault-hang-stream": lambda turn: [{"status": "and then nothing"}, lambda handler: ended(turn).wait(PATIENCE)],
    "fault-crash": lambda turn: [{"status": "at work"}, {"artifact": text("half of i"), "append": False}, Handler.reset],
    "fault-no-end": lambda turn: [{"artifact": text("all of it")}],
    "fault-many-chunks": many,
    "fault-wrong-ids-stream": wrong_ids,
    "fault-append-to-nothing": lambda turn: [{"artifact": text("from nothing"), "append": True}, {"state": "completed"}],
    "fault-after-end": after_end,
    "fault-invalid-json": lambda turn: [{"artifact": text("before")}, "data: {\"artifact\": oops\n\n"],
}

# Events that are posted after a 202.
LATER = {"tck-long-running": [{"status": "at work"}, WORK, {"artifact": text("worked"), "last": True}, {"state": "completed"}]}


def post_later(turn, events):
    url = urlsplit(f"{turn['urls']['turns']}/{turn['turn']}/events")
    seq = 0
    for event in events:
        if isinstance(event, float):
            time.sleep(event)
            continue
        seq += 1
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=PATIENCE)
        connection.request("POST", url.path, json.dumps({"seq": seq, **event}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        print(turn["turn"], seq, answer.status, answer.read()[:200])
        connection.close()
        if answer.status == 410:
            return


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes; with Nagle's algorithm the second would wait for an acknowledgement.
    disable_nagle_algorithm = True

    def do_GET(self):
        self.answer(200, b"ready", "text/plain")

    def do_DELETE(self):
        ended({"turn": self.headers["Outrigger-Turn"]}).set()
        self.answer(200, b"{}")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        turn = json.loads(body)
        name = (first_text(turn).split() or [""])[0]
        if name in ANSWERS:
            self.say(ANSWERS[name](turn))
        elif name in STREAMS:
            self.stream(STREAMS[name](turn))
        elif name in LATER:
            threading.Thread(target=post_later, args=(turn, LATER[name]), daemon=True).start()
            self.answer(202, b"")
        elif name == "fault-hang":
            ended(turn).wait(PATIENCE)
            self.close_connection = True
        elif name == "fault-invalid-answer":
            self.answer(200, b'{"text": oops')
        elif name == "fault-half-closed":
            self.half_closed()
        else:
            self.echo(raw_members(raw_members(body)["message"]))

    def echo(self, message):
        """The parts and metadata that came, byte for byte, as an artifact."""
        meta = f',"metadata":{message["metadata"]}' if "metadata" in message else ""
        self.answer(200, f'{{"artifacts":[{{"artifactId":"result","parts":{message["parts"]}{meta}}}]}}'.encode())

    def say(self, document):
        self.answer(200, json.dumps(document).encode())

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, events):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for event in events:
            if callable(event):
                event(self)
            else:
                self.wfile.write((event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n").encode())

    def reset(self):
        """Ends the connection with RST, as a process that dies does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def half_closed(self):
        """Says that more comes, closes its side, and reads on."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b'{"text": "half')
        self.connection.shutdown(socket.SHUT_WR)
        self.rfile.read()
        self.close_connection = True

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        # A caller that went away is part of the tests.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
