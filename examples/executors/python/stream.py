import json, os, signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Agent(BaseHTTPRequestHandler):
    def do_POST(self):
        turn = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in [{"status": "Thinking."}, *({"text": w + " "} for w in turn["text"].split()), {"state": "completed"}]:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 8000))), Agent).serve_forever()
