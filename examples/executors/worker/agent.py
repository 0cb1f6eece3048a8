import json, os, queue, signal, threading, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

jobs = queue.Queue()

def work():
    while turn := jobs.get():
        words = turn["text"].split()
        events = [{"text": word + " "} for word in sorted(words)] + [{"state": "completed"}]
        for seq, event in enumerate(events, 1):
            body = json.dumps({"seq": seq, **event}).encode()
            urllib.request.urlopen(f"{turn['urls']['turns']}/{turn['turn']}/events", body)

class Agent(BaseHTTPRequestHandler):
    def do_POST(self):
        jobs.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(202)
        self.end_headers()

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
threading.Thread(target=work, daemon=True).start()
ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 8000))), Agent).serve_forever()
