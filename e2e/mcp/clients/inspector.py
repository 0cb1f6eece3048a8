"""inspector.py URL MODE PLAN: the command line of npm `@modelcontextprotocol/inspector`, a run per call. What a driver is, the README
beside this says. Which revision was spoken is not in what it prints, so it is the era that was asked for."""

import json
import subprocess
import sys

PATIENCE = 60


def text(value):
    return value if isinstance(value, str) else json.dumps(value)


def pairs(flag, arguments):
    return [word for name, value in arguments.items() for word in (flag, f"{name}={text(value)}")]


def main(node, program, url, mode, plan):
    def run(method, *words):
        command = [node, program, "--cli", "--transport", "http", "--server-url", url, "--protocol-era", mode, "--method", method, *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False)
        # A tool that says it failed is an answer, and has an exit code of its own.
        if not done.stdout.strip():
            raise RuntimeError(f"{method} {words}: exit {done.returncode}: {done.stderr[-600:]}")
        return json.loads(done.stdout)

    return {
        "revision": mode,
        "tools": [tool["name"] for tool in run("tools/list")["tools"]],
        "calls": [run("tools/call", "--tool-name", c["name"], *pairs("--tool-arg", c["arguments"])) for c in plan["calls"]],
        "resources": [run("resources/read", "--uri", uri) for uri in plan["resources"]],
        "prompts": [run("prompts/get", "--prompt-name", p["name"], *pairs("--prompt-args", p["arguments"])) for p in plan["prompts"]],
    }


print(json.dumps(main(*sys.argv[1:5], json.loads(sys.argv[5]))))
