"""An Agent that does one thing: it calls the tool that the message names, and answers with what the tool says.

A message is `SERVER TOOL [ARGUMENTS as JSON]`, such as `weather get_weather {"city": "Lisbon"}`. Where a server runs makes
no difference here: the turn has one URL for each. Standard library only.
"""
import json
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REVISION = "2025-11-25"


def post(url, message, session=None):
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if session:
        headers |= {"Mcp-Session-Id": session, "MCP-Protocol-Version": REVISION}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(message).encode(), headers), timeout=60) as answer:
        text, session = answer.read().decode(), answer.headers.get("Mcp-Session-Id") or session
    if answer.headers.get_content_type() == "text/event-stream":
        events = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:") and line[5:].strip()]
        return next((e for e in events if e.get("id") == message.get("id")), None), session
    return json.loads(text) if text else None, session


def call(url, tool, arguments):
    hello = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "tool-user", "version": "1"}}
    _, session = post(url, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
    try:
        post(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
        params = {"name": tool, "arguments": arguments}
        answer, _ = post(url, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}, session)
    finally:
        goodbye = urllib.request.Request(url, method="DELETE", headers={"Mcp-Session-Id": session})
        urllib.request.urlopen(goodbye, timeout=10).read()
    if "error" in answer:
        return {"error": answer["error"]["message"]}
    return {"text": "\n".join(c["text"] for c in answer["result"]["content"] if c["type"] == "text")}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(200, {})

    def do_POST(self):
        turn = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server, _, rest = turn["text"].strip().partition(" ")
        tool, _, arguments = rest.partition(" ")
        urls = turn["urls"]["mcp"]
        if server not in urls or not tool:
            return self.reply(200, {"text": f"say SERVER TOOL [JSON]; servers: {', '.join(sorted(urls))}"})
        try:
            self.reply(200, call(urls[server], tool, json.loads(arguments or "{}")))
        except urllib.error.HTTPError as error:
            self.reply(200, {"error": f"{server} answered {error.code}: {error.read().decode()[:300]}"})
        except (json.JSONDecodeError, OSError) as error:
            self.reply(200, {"error": str(error)})

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
