"""ACTS in three passes: all capabilities, none, with authentication. Each server test runs over each of its bindings
in at least one pass; one that its preconditions keep out of a pass must get its turn in another. The client tests of
the suite are in `sidecar/tests/acts_client.rs`."""

import json
import os
import pathlib
import sys
from concurrent.futures import ThreadPoolExecutor

import yaml

from . import acts, special, wire
from .hook import Hook
from .keys import AUDIENCE, ISSUER, SCOPE, Issuer
from .pod import HERE, Pod, live

# As the folder has it: a change of the suite is to be seen.
SERVER_TESTS, CLIENT_TESTS = 103, 8
# Tests whose text is not what the specification says.
WAIVED = 18
# Tests at once.
WORKERS = 6


class World:
    """What tests need beside the sidecar: a webhook receiver and callers."""

    def __init__(self, issuer=None):
        self.hook, self.issuer = Hook(), issuer

    def caller(self, kind):
        return kind(self.issuer.token("alice") if self.issuer else None)

    def other(self, kind):
        return kind(self.issuer.token("bob") if self.issuer else None)

    def variables(self):
        if not self.issuer:
            return {"insufficientAuthToken": "none"}
        return {"insufficientAuthToken": self.issuer.token("carol", scope="other")}


def passes():
    """Name, live document, issuer."""
    yield "on", live(), None
    yield "off", live(offer={"streaming": False}, push={"enabled": False}), None
    issuer = Issuer()
    jwks = pathlib.Path(os.environ["CONFORMANCE_LOGS"]) / "jwks.json"
    jwks.write_text(json.dumps(issuer.jwks()))
    access = {"jwt": [{"issuer": ISSUER, "audiences": [AUDIENCE], "jwksFile": str(jwks), "scopes": [SCOPE]}]}
    more = {"id": "more", "name": "More", "description": "For those we know", "tags": ["test"]}
    card = live()["card"]
    yield "auth", live(access=access, extendedCard={"skills": [*card["skills"], more]}), issuer


def waivers(tests):
    """Test id: (waiver, edited test)."""
    known = {test.id: test for test in tests}
    found = {}
    for waiver in yaml.safe_load((HERE / "waivers.yaml").read_text()):
        for test_id in waiver["ids"]:
            found[test_id] = (waiver, acts.edited(known[test_id], waiver["edits"]))
    return found


def once(test, binding, world):
    """What is wrong, if anything."""
    run = acts.Run(test, binding, world.variables())
    run.world = world
    try:
        special.BEFORE.get(test.id, lambda _: None)(run)
        run.all()
        special.AFTER.get(test.id, lambda _: None)(run)
        if world.issuer:
            special.AFTER_WITH_CALLERS.get(test.id, lambda _: None)(run)
    except (AssertionError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def applies(test, card):
    has = acts.capabilities(card)
    needs_stream = test.streams() or test.id in special.STREAMS
    return (has["streaming"] or not needs_stream) and all(has[name] == wanted for name, wanted in test.capabilities.items())


def run_pass(name, document, issuer, tests, waived):
    """Outcomes by (test, binding): None where it passed, else what is wrong."""
    outcomes = {}
    with Pod(document, f"acts-{name}"):
        world = World(issuer)
        _, _, card = wire.card()
        todo = [(t, b) for t in tests if applies(t, card) for b in t.bindings()]

        def work(item):
            test, kind = item
            edited = waived.get(test.id)
            problem = once(edited[1] if edited else test, world.caller(kind), world)
            if edited and not problem and "always_passes" not in edited[0] and not once(test, world.caller(kind), world):
                problem = "the waiver is not needed: the unedited test passes"
            return (test.id, kind.name), problem

        with ThreadPoolExecutor(WORKERS) as pool:
            outcomes.update(pool.map(work, todo))
    return outcomes


def main(only=None):
    folder = os.environ.get("OUTRIGGER_ACTS")
    if not folder:
        print("SKIP: the ACTS suite is not here; OUTRIGGER_ACTS names the folder with its YAML files")
        return 0
    tests = acts.load(folder)
    server = [test for test in tests if not test.is_client()]
    waived = waivers(tests)
    counts = (len(server), len(tests) - len(server), len(waived))
    if counts != (SERVER_TESTS, CLIENT_TESTS, WAIVED):
        print(f"server tests, client tests, waived: {counts}, want {(SERVER_TESTS, CLIENT_TESTS, WAIVED)}")
        return 1
    if only:
        server = [test for test in server if test.id in only]
    results = {name: run_pass(name, document, issuer, server, waived) for name, document, issuer in passes()}
    return report(server, results, waived)


def report(tests, results, waived):
    """A line per test; what failed in full at the end."""
    failed, counts = [], {"passed": 0, "failed": 0, "skipped": 0}
    for test in tests:
        cells, ran = [], False
        for name, outcomes in results.items():
            mine = {kind.name: outcomes[test.id, kind.name] for kind in test.bindings() if (test.id, kind.name) in outcomes}
            ran = ran or bool(mine)
            failed += [(test.id, name, binding, problem) for binding, problem in mine.items() if problem]
            cells.append(f"{name} {'-' if not mine else ' '.join(b if not p else f'{b}:FAIL' for b, p in mine.items())}")
        bad = [f for f in failed if f[0] == test.id]
        counts["failed" if bad else "passed" if ran else "skipped"] += 1
        mark = "FAIL" if bad else "ok  " if ran else "SKIP"
        print(f"{mark} {test.id:<18} {test.level:<6} {' | '.join(cells)}{' (waived text)' if test.id in waived else ''}")
    # What fails alike in many places is shown once.
    alike = {}
    for test_id, name, binding, problem in failed:
        alike.setdefault((test_id, problem[:80]), []).append((f"{name} {binding}", problem))
    for (test_id, _), places in alike.items():
        print(f"--- {test_id} ({', '.join(place for place, _ in places)}): {places[0][1][:1500]}")
    sys.stdout.flush()
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or counts["skipped"] else 0
