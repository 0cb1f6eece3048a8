"""An MCP server over streamable HTTP: the weather of a few cities, made up and always the same.

weather.py [PORT]. Tool: get_weather {city}. With API_KEY in its environment it answers only who sends it as X-Api-Key.
Standard library only; one session for each client, as the revisions with a handshake have it.
"""
import json
import os
import secrets
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WEATHER = {"lisbon": "sunny, 24 °C", "bergen": "rain, 9 °C", "nairobi": "cloudy, 21 °C"}
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
MAX_BODY = 1 << 20
MAX_SESSIONS = 1000
sessions = {}


def answer(method, params):
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call" and params.get("name") == "get_weather":
        city = str((params.get("arguments") or {}).get("city", ""))
        known = WEATHER.get(city.lower())
        text = known or f"no weather for {city!r}; there is some for {', '.join(sorted(WEATHER))}"
        return {"content": [{"type": "text", "text": text}], "isError": known is None}
    raise LookupError(method)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY:
            self.close_connection = True
            return self.reply(413)
        body = self.rfile.read(length)
        if not self.known():
            return self.reply(401)
        message = json.loads(body)
        session = self.headers.get("Mcp-Session-Id")
        if message.get("method") == "initialize":
            session = secrets.token_urlsafe(16)
            if len(sessions) >= MAX_SESSIONS:
                sessions.pop(next(iter(sessions)))
            sessions[session] = True
            hello = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "weather", "version": "1.0.0"}}
            return self.reply(200, {"jsonrpc": "2.0", "id": message["id"], "result": hello}, {"Mcp-Session-Id": session})
        if session not in sessions:
            return self.reply(404 if session else 400)
        if "id" not in message:
            return self.reply(202)
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = answer(message.get("method"), message.get("params") or {})
        except LookupError as unknown:
            reply["error"] = {"code": -32601, "message": f"nobody answers {unknown}"}
        self.reply(200, reply)

    def do_GET(self):
        self.reply(405 if self.known() else 401)

    def do_DELETE(self):
        self.reply(204 if self.known() and sessions.pop(self.headers.get("Mcp-Session-Id"), None) else 404)

    def known(self):
        wanted = os.environ.get("API_KEY")
        return not wanted or secrets.compare_digest(self.headers.get("X-Api-Key", ""), wanted)

    def reply(self, status, value=None, headers=None):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**(headers or {}), "Content-Type": "application/json", "Content-Length": str(len(body))}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("", int(sys.argv[1]) if len(sys.argv) > 1 else 9000), Handler)
    server.daemon_threads = True
    server.serve_forever()
