"""The conformance suite against each fixture behind sidecar and shim: a table of scenarios, which must be the golden one."""

import difflib
import fnmatch
import json
import os
import pathlib
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import yaml

from .pod import Pod

HERE = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = HERE / "golden/scenarios.txt"
# Entries of waivers.yaml.
WAIVED = 0
# Runs of the suite at once: each is one client.
WORKERS = 3
# Of one run.
PATIENCE = 600
# Scenarios with a check that failed shown in full.
SHOWN = 60


def node(*command):
    architecture = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
    modules = f"{os.environ['MCP_NODE']}/node_modules"
    return [f"{modules}/node-linux-{architecture}/bin/node", *(str(word).replace("$MODULES", modules) for word in command)]


def command(fixture):
    return [os.path.expandvars(word if word.startswith("$") or "/" not in word else str(HERE / word)) for word in fixture["command"]]


def verdict(checks):
    """Failed checks of a scenario, each with its reason; warnings are no failures."""
    return [f"{c['id']}: {c.get('errorMessage') or c['description']}" for c in checks if c["status"] == "FAILURE"]


def run(job):
    """What came out for a fixture and a revision: failed checks by scenario."""
    name, revision, url, logs = job
    out = logs / f"suite-{name}-{revision}"
    shutil.rmtree(out, ignore_errors=True)
    words = node("$MODULES/@modelcontextprotocol/conformance/dist/index.js", "server", "--url", url, "--requirements", revision, "-o", out)
    with open(f"{out}.log", "w") as log:
        subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=PATIENCE, check=False)
    outcomes = {}
    for folder in sorted(out.glob("server-*")) if out.exists() else []:
        # The name ends with the time: 2026-12-01T04-00-00-000Z.
        scenario = folder.name.removeprefix("server-")[:-25]
        file = folder / "checks.json"
        outcomes[scenario] = verdict(json.loads(file.read_text())) if file.exists() else ["the suite wrote no checks"]
    return outcomes


def scenarios(revision):
    """Scenarios of a revision for servers, required or not."""
    listed = subprocess.run(
        node("$MODULES/@modelcontextprotocol/conformance/dist/index.js", "list", "--requirements", revision),
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout
    part, required, others = None, [], []
    for line in listed.splitlines():
        if line and not line.startswith(" "):
            part = line
        elif line.startswith("  - ") and part.startswith("Server"):
            required.append(line[4:].strip())
        elif line.startswith("    - ") and line.endswith("[server]"):
            others.append(line[6:].removesuffix("[server]").strip())
    assert required, f"nothing is required for {revision}: {listed}"
    return required, others


def matches(scenario, patterns):
    return any(fnmatch.fnmatchcase(scenario, pattern) for pattern in patterns)


def table(fixtures, sets, found, ignored):
    lines, counts = [], {}
    for revision, (required, others) in sets.items():
        columns = [f for f in fixtures if revision in f["revisions"]]
        lines.append(f"{revision:<48}" + "".join(f"{f['name']:<12}" for f in columns).rstrip())
        for scenario in required + others:
            if matches(scenario, ignored):
                continue
            row = ""
            for fixture in columns:
                outcome = found.get((fixture["name"], revision), {}).get(scenario)
                if matches(scenario, fixture.get("lacks", {})):
                    cell = "-"
                else:
                    cell = "absent" if outcome is None else "FAILED" if outcome else "passed"
                if scenario in required and cell != "-":
                    good, all_of = counts.get((fixture["name"], revision), (0, 0))
                    counts[fixture["name"], revision] = (good + (cell == "passed"), all_of + 1)
                row += f"{cell:<12}"
            lines.append(f"{('' if scenario in required else 'unscored: ') + scenario:<48}{row.rstrip()}")
        totals = "".join(f"{'{}/{}'.format(*counts[f['name'], revision]):<12}" for f in columns)
        lines += [f"{'required':<48}{totals.rstrip()}", ""]
    return "\n".join(lines)


def main(only=None):
    document = yaml.safe_load((HERE / "fixtures.yaml").read_text())
    waivers = yaml.safe_load((HERE / "waivers.yaml").read_text())["waivers"]
    if len(waivers) != WAIVED or not all(w.get("section") or w.get("reproduction") for w in waivers):
        print(f"{len(waivers)} waivers, want {WAIVED}, each with its section or reproduction")
        return 1
    fixtures = [f for f in document["fixtures"] if not only or f["name"] in only]
    sets = {r: scenarios(r) for r in sorted({r for f in fixtures for r in f["revisions"]})}
    http = {f["name"]: f["http"] for f in fixtures if "http" in f}
    with Pod("suite", {f["name"]: command(f) for f in fixtures}, http) as pod, ThreadPoolExecutor(WORKERS) as pool:
        for name, why in pod.dead.items():
            print(f"--- {name} does not start: {why}")
        alive = [f for f in fixtures if f["name"] not in pod.dead]
        jobs = [(f["name"], r, pod.url(f["name"]), pod.logs) for f in alive for r in f["revisions"]]
        found = {(name, revision): outcome for (name, revision, *_), outcome in zip(jobs, pool.map(run, jobs))}
    return report(fixtures, sets, found, document["ignored"], waivers, bool(only))


def report(fixtures, sets, found, ignored, waivers, partial):
    waived = {(w["fixture"], w["revision"], w["scenario"]) for w in waivers}
    failed = 0
    lacks = {f["name"]: f.get("lacks", {}) for f in fixtures}
    shown = 0
    for (name, revision), outcomes in found.items():
        for scenario, reasons in outcomes.items():
            if matches(scenario, ignored) or matches(scenario, lacks[name]):
                continue
            if (name, revision, scenario) in waived and not reasons:
                print(f"--- {name} {revision} {scenario} is waived, but passes")
                failed += 1
            elif reasons and (name, revision, scenario) not in waived and shown < SHOWN:
                shown += 1
                print(f"--- {name} {revision} {scenario}")
                for reason in reasons:
                    print(f"    {reason[:600]}")
    text = table(fixtures, sets, found, ignored)
    print(text)
    if partial:
        print("part of the fixtures: not compared with the golden table")
        return failed
    if os.environ.get("UPDATE"):
        GOLDEN.write_text(text)
    want = GOLDEN.read_text().splitlines() if GOLDEN.exists() else []
    if want != text.splitlines():
        print("\n".join(difflib.unified_diff(want, text.splitlines(), "golden", "now", n=0, lineterm="")))
        failed += 1
    return failed
