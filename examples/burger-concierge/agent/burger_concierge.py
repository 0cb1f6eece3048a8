"""The burger concierge: an agent that calls other agents, by the executor contract `outrigger/v1` and plain A2A.

It finds the sellers that its Agent lists as peers by their cards, asks each for the price, tells what it found, and orders
from the cheapest when told so. Everything goes through the sidecar's local API: `urls.agents` of the turn. Python's standard
library is all it needs.
"""

import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CALL_TIMEOUT_SECONDS = 60
MOST_ANSWER_BYTES = 4 << 20
MOST_CALLS_AT_ONCE = 8


class CannotOrder(Exception):
    """The order does not come about; the task fails with this text."""


def fetch(url, body=None, trace=None):
    """JSON from a URL; with a body it is a POST."""
    headers = {"Accept": "application/json", "A2A-Version": "1.0"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if trace:
        headers["traceparent"] = trace
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=CALL_TIMEOUT_SECONDS) as answer:
        return json.loads(answer.read(MOST_ANSWER_BYTES))


class Seller:
    """A peer as its card describes it."""

    def __init__(self, peer, trace):
        self.trace = trace
        self.id = f"{peer['name']}.{peer['namespace']}"
        card = fetch(f"{peer['url']}/.well-known/agent-card.json", trace=trace)
        self.name = card["name"]
        self.sells = any("food" in skill["tags"] for skill in card["skills"])
        # The order of the list is the agent's preference; the URLs lead through the sidecar.
        speaks = (i for i in card["supportedInterfaces"] if i["protocolVersion"] == "1.0" and i["protocolBinding"] in ("JSONRPC", "HTTP+JSON"))
        self.interface = next(speaks, None)

    def call(self, method, path, params):
        """One operation of A2A 1.0 in the binding of the card."""
        url = self.interface["url"]
        if self.interface["protocolBinding"] == "HTTP+JSON":
            return fetch(url.rstrip("/") + path, params, self.trace)
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = fetch(url, request, self.trace)
        if "error" in answer:
            raise CannotOrder(f"{self.name} says: {answer['error']['message']}")
        return answer["result"]

    def say(self, text, task=None):
        """Sends a message, on a task if there is one; the task as it is then."""
        message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
        if task:
            message["taskId"] = task
        result = self.call("SendMessage", "/message:send", {"message": message})
        if "task" not in result:
            raise CannotOrder(f"{self.name} does not take orders.")
        return result["task"]

    def cancel(self, task):
        """Tells the seller that nothing comes of it."""
        try:
            self.call("CancelTask", f"/tasks/{task}:cancel", {"id": task})
        except (OSError, CannotOrder) as error:
            print(f"cancel at {self.id}: {error}", file=sys.stderr, flush=True)


def sellers(turn, trace):
    """The peers that sell something; one that cannot be reached is left out, and named."""
    peers = fetch(turn["urls"]["agents"], trace=trace)["agents"]
    found, missing = [], []

    def look(peer):
        try:
            return Seller(peer, trace)
        except (OSError, KeyError, ValueError) as error:
            print(f"card of {peer['name']}: {error}", file=sys.stderr, flush=True)
            return peer["name"]

    with ThreadPoolExecutor(MOST_CALLS_AT_ONCE) as pool:
        for seen in pool.map(look, peers):
            if isinstance(seen, str):
                missing.append(seen)
            elif seen.sells and seen.interface:
                found.append(seen)
    return found, missing


def offer(seller, text):
    """What a seller wants for an order: (price, currency, seller, its task); None if it asks for something else."""
    task = seller.say(text)
    parts = task["status"].get("message", {}).get("parts", [])
    price = next((part["data"] for part in parts if "total" in part.get("data", {})), None)
    if task["status"]["state"] != "TASK_STATE_INPUT_REQUIRED" or price is None:
        if task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED":
            seller.cancel(task["id"])
        return None
    return Decimal(price["total"]), price["currency"], seller, task["id"]


def offers(found, text):
    """The offers there are, cheapest first."""

    def ask(seller):
        try:
            return offer(seller, text)
        except (OSError, CannotOrder) as error:
            print(f"offer of {seller.id}: {error}", file=sys.stderr, flush=True)
            return None

    with ThreadPoolExecutor(MOST_CALLS_AT_ONCE) as pool:
        return sorted(filter(None, pool.map(ask, found)), key=lambda o: (o[0], o[2].id))


def compare(turn, trace):
    """The first half: what would you like, and what does it cost where."""
    found, missing = sellers(turn, trace)
    if not found:
        raise CannotOrder(f"No seller can be reached: {', '.join(missing) or 'this agent has no peers'}.")
    made = offers(found, turn["text"])
    if not made:
        names = ", ".join(seller.name for seller in found)
        return {"state": "input-required", "text": f"None of {names} could make an offer. What would you like?"}
    lines = [f"{seller.name} {price} {currency}" for price, currency, seller, _ in made]
    memo = {"task": turn["task"]["id"], "offers": [[seller.id, task] for _, _, seller, task in made]}
    text = f"{'; '.join(lines)}. Shall I order from {made[0][2].name}?"
    if missing:
        text = f"{text} (Not reached: {', '.join(missing)}.)"
    return {"state": "input-required", "text": text, "memo": memo}


def order(turn, trace, made):
    """The second half: the order at the cheapest, and the others let go."""
    found = {seller.id: seller for seller in sellers(turn, trace)[0]}
    (best, task), others = made[0], made[1:]
    if best not in found:
        raise CannotOrder(f"{best} cannot be reached any more.")
    done = found[best].say("yes", task)
    release(found, others)
    if done["status"]["state"] != "TASK_STATE_COMPLETED":
        raise CannotOrder(f"{found[best].name} did not take the order: {done['status']['state']}.")
    artifact = done["artifacts"][0]
    text = next(part["text"] for part in artifact["parts"] if "text" in part)
    data = {"seller": best, "task": task}
    return {"artifacts": [{"artifactId": "order", "name": "Order", "parts": [{"text": f"{found[best].name}: {text}"}, {"data": data}]}], "memo": None}


def release(found, made):
    """Cancels what is not ordered."""
    for seller, task in made:
        if seller in found:
            found[seller].cancel(task)


def answer(turn, trace):
    """One turn in, one answer out."""
    said = turn["text"].strip().lower()
    memo = turn["context"].get("memo") or {}
    made = memo["offers"] if memo.get("task") == turn["task"]["id"] else []
    if made and re.match(r"(y|yes|ok|okay|sure|confirm(ed)?|please do)\b", said):
        return order(turn, trace, made)
    if made:
        release({seller.id: seller for seller in sellers(turn, trace)[0]}, made)
        if re.match(r"(n|no|nope|cancel|stop)\b", said):
            return {"state": "canceled", "text": "Nothing was ordered.", "memo": None}
    return compare(turn, trace)


class Handler(BaseHTTPRequestHandler):
    """HTTP round `answer`. The sidecar is its only caller and has bounded the body."""

    def do_POST(self):
        turn = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            reply = answer(turn, self.headers.get("traceparent"))
        except CannotOrder as error:
            reply = {"error": {"message": str(error), "reason": "cannot_order"}}
        except (OSError, KeyError, ValueError, StopIteration) as error:
            print(f"turn {turn['turn']}: {error!r}", file=sys.stderr, flush=True)
            reply = {"error": {"message": "A seller gave no usable answer.", "reason": "seller_failed"}}
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        """Readiness: any answer will do."""
        self.send_response(204)
        self.end_headers()

    def log_request(self, code="-", size="-"):
        if self.command != "GET":
            super().log_request(code, size)


def main():
    # The first process of a container gets no default action for TERM: without this line it would be killed in the end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8000"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
