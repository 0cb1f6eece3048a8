"""An MCP server over standard input and output: searches a folder of articles and judges the mood of one.

news_search.py FOLDER. Tools: search_news {query}, analyze_sentiment {file}. Standard library only.
"""
import json
import os
import re
import sys

GOOD = {"boost", "calm", "celebrate", "gain", "good", "great", "growth", "happy", "hope", "improve", "love", "praise", "record", "safe", "success", "win"}
BAD = {"angry", "bad", "crisis", "cut", "delay", "fail", "fear", "flood", "loss", "poor", "protest", "risk", "sad", "storm", "strike", "worry"}
MAX_BYTES = 1 << 20

TOOLS = [
    {
        "name": "search_news",
        "description": "Finds articles that have all words of a query.",
        "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
    {
        "name": "analyze_sentiment",
        "description": "Says how the text of an article sounds: positive, negative or neutral, with the words that say so.",
        "inputSchema": {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]},
    },
]


def words(text):
    # "wins" and "failed" count as "win" and "fail".
    return [re.sub(r"(s|ed|ing)$", "", w) if w not in GOOD | BAD else w for w in re.findall(r"[a-z]+", text.lower())]


class Failed(Exception):
    """Told to the model, which may try again with other arguments."""


class News:
    def __init__(self, folder):
        self.folder = os.path.realpath(folder)

    def read(self, name):
        path = os.path.join(self.folder, name)
        # A ConfigMap's files are links into a folder beside them; none may lead out of it.
        if not os.path.realpath(path).startswith(self.folder + os.sep) or not os.path.isfile(path):
            raise Failed(f"there is no article {name!r}; search_news lists them")
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_BYTES)

    def search_news(self, query):
        wanted = set(words(query))
        names = sorted(n for n in os.listdir(self.folder) if n.endswith(".txt"))
        found = [n for n in names if wanted <= set(words(self.read(n)))]
        return "\n".join(f"{n}: {self.read(n).splitlines()[0]}" for n in found) or "no article has these words"

    def analyze_sentiment(self, file):
        text = words(self.read(file))
        good, bad = [w for w in text if w in GOOD], [w for w in text if w in BAD]
        score = (len(good) - len(bad)) / max(1, len(good) + len(bad))
        mood = "positive" if score > 0.2 else "negative" if score < -0.2 else "neutral"
        return json.dumps({"sentiment": mood, "score": round(score, 2), "positive": good, "negative": bad})

    def call(self, params):
        name, arguments = params.get("name"), params.get("arguments") or {}
        try:
            if name == "search_news":
                text = self.search_news(str(arguments["query"]))
            elif name == "analyze_sentiment":
                text = self.analyze_sentiment(str(arguments["file"]))
            else:
                raise LookupError(f"unknown tool {name!r}")
        except KeyError as missing:
            return {"content": [{"type": "text", "text": f"the argument {missing} is missing"}], "isError": True}
        except Failed as why:
            return {"content": [{"type": "text", "text": str(why)}], "isError": True}
        return {"content": [{"type": "text", "text": text}]}


def answer(news, request):
    method, params = request.get("method"), request.get("params") or {}
    if method == "initialize":
        server = {"name": "news-search", "version": "1.0.0"}
        return {"protocolVersion": params.get("protocolVersion", "2025-11-25"), "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        return news.call(params)
    raise LookupError(f"unknown method {method!r}")


def main():
    news = News(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or "method" not in request:
            continue
        reply = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            reply["result"] = answer(news, request)
        except LookupError as why:
            reply["error"] = {"code": -32601 if "method" in str(why) else -32602, "message": str(why)}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
