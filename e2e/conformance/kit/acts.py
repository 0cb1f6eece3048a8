"""The runner of ACTS: reads the YAML of a folder and carries its steps out over a binding."""

import copy
import json
import pathlib
import re
import time
import uuid
from dataclasses import dataclass

import yaml

from . import wire
from .match import find, problems

TRANSPORTS = {"jsonrpc": wire.JsonRpc, "rest": wire.HttpJson, "grpc": wire.Grpc}
# Between two polls: the time that a test allows in all is its attempts times its delay.
POLL = 0.05
# States in the order in which a stream may pass them.
ORDER = ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"]


class Failed(AssertionError):
    """A step that did not come out as wanted."""


@dataclass
class Test:
    id: str
    level: str
    capabilities: dict
    transports: list
    variables: dict
    steps: list
    tags: list

    def bindings(self):
        return [TRANSPORTS[t] for t in self.transports]

    def streams(self):
        """Whether it wants a stream. No test of ACTS has that as a precondition, and a server need not stream."""
        return any("expect_stream" in step for step in self.steps)

    def is_client(self):
        return any("client_response" in step for step in self.steps)


def load(folder):
    """All tests of the suite in a folder, in its order."""
    folder = pathlib.Path(folder)
    tests = []
    for name in yaml.safe_load((folder / "suite.acts.yaml").read_text())["include"]:
        document = yaml.safe_load((folder / name).read_text())
        for suite in document["suites"]:
            for test in suite["tests"]:
                wanted = test.get("preconditions", {}).get("capabilities", {})
                transports = test.get("transport", list(TRANSPORTS))
                variables, tags = document.get("variables", {}), test.get("tags", [])
                tests.append(Test(test["id"], test["level"], wanted, transports, variables, test["steps"], tags))
    return tests


def capabilities(card):
    """What preconditions ask of a card."""
    declared = card.get("capabilities", {})
    names = ("streaming", "pushNotifications", "extendedAgentCard")
    return {**{name: declared.get(name, False) for name in names}, "authentication": bool(card.get("securitySchemes"))}


def edited(test, edits):
    """The test with values at paths replaced; `null` takes a member away."""
    test = copy.deepcopy(test)
    for path, value in edits:
        at = test.steps
        for key in path[:-1]:
            at = at[key]
        if value is None:
            del at[path[-1]]
        else:
            at[path[-1]] = value
    return test


class Run:
    """One test over one binding."""

    def __init__(self, test, binding, variables):
        self.test, self.binding = test, binding
        self.variables = {**test.variables, **variables}
        self.answers = {}

    def fill(self, value):
        if isinstance(value, dict):
            return {k: self.fill(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.fill(v) for v in value]
        if not isinstance(value, str):
            return value

        def lookup(match):
            name = match.group(1)
            if name not in self.variables:
                raise Failed(f"nothing is known of {{{{{name}}}}}")
            return str(self.variables[name])

        return re.sub(r"\{\{\s*([^{}\s]+)\s*\}\}", lookup, value)

    def all(self):
        for step in self.test.steps:
            try:
                self.step(step)
            except (AssertionError, OSError, ValueError, KeyError) as error:
                raise Failed(f"step {step['id']}: {type(error).__name__}: {error}") from error

    def step(self, step):
        repeat = step.get("repeat")
        deadline = time.monotonic() + (repeat["max_attempts"] * repeat["delay_ms"] / 1000 if repeat else 0)
        while True:
            answer = self.raw(step["raw"]) if "raw" in step else self.operation(step["operation"], self.fill(step["params"]))
            self.answers[step["id"]] = answer
            if not repeat or until(repeat["until"], answer.body):
                break
            if time.monotonic() > deadline:
                raise Failed(f"{repeat['until']} did not come true; last {answer.body}")
            time.sleep(POLL)
        self.check(step, answer)
        for name, path in step.get("capture", {}).items():
            values = find(answer.body, path)
            if not values:
                raise Failed(f"nothing at {path}")
            self.variables[f"{step['id']}.{name}"] = values[0]

    def operation(self, operation, params):
        if operation == "get_agent_card" and not params.pop("extended", False):
            status, headers, body = wire.card()
            return wire.Answer(status, body, headers=headers)
        operation = "get_extended_agent_card" if operation == "get_agent_card" else operation
        return self.binding.call(operation, arranged(operation, params))

    def raw(self, request):
        # A raw request has no credential of its own; only tests of authentication mean that.
        known = {} if "auth" in self.test.tags else self.binding.extra
        headers = {**known, **self.fill(request["headers"])}
        body = request["body_raw"].encode() if "body_raw" in request else self.fill(request.get("body"))
        if "text/event-stream" in headers.get("Accept", ""):
            connection, response = wire.http_request(request["method"], request["path"], headers, body)
            events = [document for _, document in wire.Sse(connection, response)]
            connection.close()
            return wire.Answer(response.status, events=events)
        status, headers, body = wire.http_call(request["method"], request["path"], headers, body)
        return wire.Answer(status, json.loads(body) if body else None, headers=headers)

    def check(self, step, answer):
        found = []
        if "expect_error" in step:
            found = errors(self.fill(step["expect_error"]), answer.fault)
        elif "expect" in step:
            found = expected(self.fill(step["expect"]), answer)
        if "expect_stream" in step:
            found += streamed(self.fill(step["expect_stream"]), answer)
        for assertion in step.get("assertions", []):
            source = self.answers[re.fullmatch(r"\{\{(.+)\.response\}\}", assertion["source"]).group(1)]
            wanted = self.fill(assertion["any"])
            values = find(source.body, wanted["path"])
            if not any(not problems(wanted["match"], value) for value in values):
                found.append(f"none of {len(values)} at {wanted['path']} is like {wanted['match']}: {values}")
        if found:
            raise Failed("; ".join(found))


def arranged(operation, params):
    """Abstract parameters in the shape of 1.0: ACTS puts the ids beside the message and wraps the push configuration."""
    params = dict(params)
    if "message" in params:
        params["message"] = message_of(params)
    if "pushNotificationConfig" in params:
        params.update(params.pop("pushNotificationConfig"))
    return params


def message_of(params):
    """The message of an abstract send, with ids where 1.0 has them; its own id is the client's to make."""
    ids = {name: params.pop(name) for name in ("taskId", "contextId") if name in params}
    return {"messageId": str(uuid.uuid4()), **ids, **params["message"]}


def until(condition, body):
    """`status.state in [A, B]` or `status.state == A`."""
    path, operator, wanted = condition.split(" ", 2)
    values = re.findall(r"\w+", wanted) if operator == "in" else [wanted]
    return any(value in values for value in find(body, path))


def expected(want, answer):
    if want.get("status") == "error" or set(want) == {"error"}:
        return [] if answer.fault and answer.fault.message else [f"want an error, got {answer.body or answer.events}"]
    if answer.fault:
        return [f"want success, got {answer.fault}"]
    found = problems(want["status"], answer.status, "status") if "status" in want else []
    body = want["body"] if "body" in want else {k: v for k, v in want.items() if k != "status"}
    return found + (problems(body, answer.body) if body else [])


def errors(want, fault):
    if fault is None:
        return ["want an error, got none"]
    found = []
    for key, value in want.items():
        if key in ("code", "error_type"):
            found += problems(value, fault.name, "error")
        else:
            found += problems(value, {"message": fault.message, "data": fault.data}[key], f"error.{key}")
    return found


def view(event):
    """An event with the members of its update at the top too, under ACTS' names."""
    seen = dict(event)
    for name, alias in (("statusUpdate", "status_update"), ("artifactUpdate", "artifact_update"), ("task", "task")):
        if name in event:
            seen[alias] = event[name]
            seen = {**event[name], **seen}
    return seen


def streamed(want, answer):
    if answer.fault:
        return [f"want a stream, got {answer.fault}"]
    events = [view(event.get("result", event)) for event in answer.events]
    found = [f"the stream has an error: {e['error']}" for e in events if "error" in e]
    if len(events) < want.get("min_count", 1):
        found.append(f"want at least {want['min_count']} events, got {answer.events}")
    if want.get("ordering") == "monotonic_state":
        states = [e["status"]["state"] for e in events if "status" in e]
        ranks = [ORDER.index(s) if s in ORDER else len(ORDER) for s in states]
        if ranks != sorted(ranks):
            found.append(f"states go back: {states}")
    if "final_event" in want:
        found += problems(want["final_event"], events[-1] if events else None, "last event")
    for raw in answer.events if "each_event" in want else []:
        found += problems(want["each_event"], raw, "event")
    for one in want.get("events", []):
        tries = [{k: v for k, v in one.items() if k not in ("description", "match", "index", "one_of")}, *one.get("one_of", [])]
        at = [events[one["index"]]] if "index" in one else events
        tries = [t for t in tries if t]
        if not any(not problems(t, e) for t in tries for e in at):
            found.append(f"no event is like {tries}: {answer.events}")
    return found
