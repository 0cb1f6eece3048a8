"""The burger seller: an A2A agent in one HTTP handler, by the executor contract `outrigger/v1`.

It takes an order, asks for a confirmation, keeps the order in the memo meanwhile, asks the MCP server `time` of its pod
what time it is, and gives an artifact with the pick-up time. Menu and prices are files of the skill `burger-menu`, or of the one
that the variable MENU names.
"""

import asyncio
import json
import os
import re
import signal
import sys
from datetime import datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import mcp

NUMBERS = {w: n for n, w in enumerate("zero one two three four five six seven eight nine ten eleven twelve".split())} | {"a": 1, "an": 1}
MOST_OF_ONE_ITEM = 20
TOOL_TIMEOUT_SECONDS = 30
MENU = os.environ.get("MENU", "burger-menu")


class CannotSell(Exception):
    """Something of the kitchen is missing; the task fails with this text."""


def read_menu(turn):
    """The prices, from the files of the skill as they are for this turn."""
    folder = next((skill["path"] for skill in turn["skills"] if skill["name"] == MENU), None)
    if folder is None:
        raise CannotSell(f"I have no menu: the skill {MENU} is not among this agent's skills.")
    return json.loads(Path(folder, "references", "prices.json").read_text(encoding="utf-8"))


def read_order(text, menu):
    """What of the menu stands in the text: {"cheeseburger": 2}; an item without a number counts once."""
    order = {}
    for item in menu["items"]:
        found = re.search(rf"(?:\b(\w+)\s+)?\b{re.escape(item['name'])}s?\b", text, re.IGNORECASE)
        if found:
            word = (found[1] or "").lower()
            order[item["id"]] = int(word) if word.isdecimal() and len(word) < 4 else NUMBERS.get(word, 1)
    return {name: n for name, n in order.items() if n}


def bill(order, menu):
    """Lines of the order, the sum of their prices, and the minutes the slowest of them takes."""
    items = [item for item in menu["items"] if item["id"] in order]
    lines = [f"{order[item['id']]} x {item['name']}" for item in items]
    total = sum(Decimal(item["price"]) * order[item["id"]] for item in items)
    return lines, f"{total:.2f} {menu['currency']}", max(item["minutes"] for item in items)


async def current_time(url):
    """Asks the MCP server of the pod; it speaks stdio there, the sidecar makes it streamable HTTP here."""
    async with mcp.Client(url) as client:
        result = await client.call_tool("get_current_time", {"timezone": "UTC"})
        if result.is_error:
            raise CannotSell("The kitchen's clock is broken.")
        return datetime.fromisoformat(json.loads(result.content[0].text)["datetime"])


def pick_up(turn, minutes):
    """The time of the tool and the minutes of the kitchen."""
    url = turn["urls"]["mcp"].get("time")
    if url is None:
        raise CannotSell("I have no clock: the MCP server time is not among this agent's servers.")
    try:
        now = asyncio.run(asyncio.wait_for(current_time(url), TOOL_TIMEOUT_SECONDS))
    except CannotSell:
        raise
    except Exception as error:  # whatever the client raises, the caller learns that it was the clock
        print(f"time: {error!r}", file=sys.stderr, flush=True)
        raise CannotSell("The kitchen's clock does not answer.") from error
    return (now + timedelta(minutes=minutes)).strftime("%H:%M UTC")


def answer(turn):
    """One turn in, one answer out: everything the agent does."""
    menu = read_menu(turn)
    said = turn["text"].strip().lower()
    memo = turn["context"].get("memo") or {}
    # The memo belongs to the conversation; an order in it counts for its own task only.
    order = memo["order"] if memo.get("task") == turn["task"]["id"] else {}

    if order and re.match(r"(y|yes|ok|okay|sure|confirm(ed)?|please do)\b", said):
        lines, total, minutes = bill(order, menu)
        ready = pick_up(turn, minutes)
        number = turn["task"]["id"][:8]
        text = f"Order {number}: {', '.join(lines)}. Total {total}. Pick it up at {ready}."
        data = {"order": number, "items": order, "total": total, "pickUp": ready}
        return {"artifacts": [{"artifactId": "order", "name": "Order", "parts": [{"text": text}, {"data": data}]}], "memo": None}
    if order and re.match(r"(n|no|nope|cancel|stop)\b", said):
        return {"state": "canceled", "text": "Nothing was ordered.", "memo": None}

    wanted = read_order(said, menu)
    if not wanted and not order:
        offers = ", ".join(f"{item['name']} {item['price']}" for item in menu["items"])
        return {"state": "input-required", "text": f"What would you like? We have: {offers} ({menu['currency']})."}
    if any(n > MOST_OF_ONE_ITEM for n in wanted.values()):
        return {"state": "input-required", "text": f"We sell at most {MOST_OF_ONE_ITEM} of one item. How many would you like?"}
    order = wanted or order
    lines, total, _ = bill(order, menu)
    # The price as data too: other agents compare it.
    price = {"total": total.split()[0], "currency": menu["currency"]}
    memo = {"task": turn["task"]["id"], "order": order}
    return {"state": "input-required", "text": f"{', '.join(lines)} for {total}. Confirm?", "parts": [{"data": price}], "memo": memo}


class Handler(BaseHTTPRequestHandler):
    """HTTP round `answer`. The sidecar is its only caller and has bounded the body."""

    def do_POST(self):
        turn = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            reply = answer(turn)
        except CannotSell as error:
            reply = {"error": {"message": str(error), "reason": "cannot_sell"}}
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
    # Loopback only: callers come through the sidecar.
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8000"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
