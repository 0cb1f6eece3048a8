"""What the text of an ACTS test leaves to its runner (`runner-special`): second callers, webhooks, headers, parallel streams."""

import threading
import uuid

from . import wire
from .acts import Failed, problems

MISSING = "00000000-0000-0000-0000-000000000000"


def send(binding, text, **configuration):
    message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    params = {"message": message, **({"configuration": configuration} if configuration else {})}
    return binding.call("send_message", params)


def want(holds, says):
    if not holds:
        raise Failed(says)


def schema(kind, document):
    """Whether a document has the shape of a message of the protocol: names, types, enums, and no member besides."""
    from a2a.types import a2a_pb2
    from google.protobuf import json_format

    try:
        json_format.ParseDict(document, getattr(a2a_pb2, kind)())
    except json_format.ParseError as error:
        raise Failed(f"no {kind}: {error}") from error


# Of the 0.3 card, which a reader of 1.0 finds beside the members of 1.0.
OLD_CARD = {"url", "preferredTransport", "additionalInterfaces", "protocolVersion", "supportsAuthenticatedExtendedCard", "security"}


def pure(card):
    """The members of 1.0 in a card that serves readers of 0.3 too."""
    pure = {k: v for k, v in card.items() if k not in OLD_CARD}
    old = {"type", "in", "name", "scheme", "bearerFormat", "flows", "openIdConnectUrl", "description"}
    for name, scheme in pure.get("securitySchemes", {}).items():
        pure["securitySchemes"] = {**pure["securitySchemes"], name: {k: v for k, v in scheme.items() if k not in old}}
    return pure


def cached(run):
    headers = run.answers["step-1"].headers
    want("max-age" in headers.get("cache-control", "") and headers.get("etag"), f"no caching headers: {headers}")
    status, _, _ = wire.http_call("GET", "/.well-known/agent-card.json", {"A2A-Version": "1.0", "If-None-Match": headers["etag"]})
    want(status == 304, f"{status} for the entity tag that was given")


def card_schema(run):
    schema("AgentCard", pure(run.answers["step-1"].body))


def task_schema(run):
    schema("SendMessageResponse", run.answers["send"].body)


def content_type(run):
    kind = run.answers["send"].headers.get("content-type", "")
    want(kind.startswith("application/a2a+json"), f"Content-Type {kind!r}")


def no_task(run):
    fault = run.answers["get-missing"].fault
    want(fault.code == "NOT_FOUND" and fault.details, f"{fault}")


def foreign(run):
    """The error for another's task tells no more than the one for a task that never was."""
    theirs = run.world.other(type(run.binding))
    task = send(theirs, "tck-complete-task of another").body["task"]["id"]
    faults = []
    for id in (task, str(uuid.uuid4())):
        fault = run.binding.call("get_task", {"id": id}).fault
        want(fault is not None, f"another's task can be read: {id}")
        faults.append(str((fault.name, fault.message, fault.details, fault.code)).replace(id, "ID"))
    want(faults[0] == faults[1], f"told apart: {faults}")


def other_task(run):
    theirs = run.world.other(type(run.binding))
    run.variables["otherUserTaskId"] = send(theirs, "tck-complete-task of another").body["task"]["id"]


def other_task_same(run):
    faults = [run.answers[step].fault for step in ("get-other-user-task", "get-missing-task")]
    ids = run.variables["otherUserTaskId"], MISSING
    texts = [str((f.name, f.message, f.details, f.code)).replace(i, "ID") for f, i in zip(faults, ids)]
    want(texts[0] == texts[1], f"told apart: {texts}")


def challenged(run):
    """Each way in wants a credential, and says which kind over HTTP."""
    if isinstance(run.binding, wire.Grpc):
        return
    for method, path, body in [
        ("POST", "/message:send", {"message": {}}),
        ("POST", "/message:stream", {"message": {}}),
        ("GET", f"/tasks/{MISSING}", None),
        ("GET", "/tasks", None),
        ("POST", f"/tasks/{MISSING}:cancel", {}),
        ("GET", f"/tasks/{MISSING}:subscribe", None),
        ("GET", f"/tasks/{MISSING}/pushNotificationConfigs", None),
        ("POST", "/", {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}),
    ]:
        headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
        status, headers, _ = wire.http_call(method, path, headers, body)
        want(status == 401 and "www-authenticate" in headers, f"{method} {path} without a credential: {status} {headers}")


def refused_context(run):
    """A context of the caller's making that the server does not take: it says so, and makes up no other."""
    run.variables["refusedContext"] = "c" * 1025


def hook(wants=None):
    def before(run):
        run.variables["receiver"] = str(uuid.uuid4())
        run.variables["webhookUrl"] = run.world.hook.url(run.variables["receiver"], wants)

    return before


def delivered(authorization=None):
    """Until the task's end has been delivered: each body one `StreamResponse`, the end last."""

    def after(run):
        task = run.variables[next(k for k in run.variables if k.endswith(".taskId"))]

        def ended(seen):
            return any("TASK_STATE_COMPLETED" in str(body) for _, body in seen)

        seen = run.world.hook.wait(run.variables["receiver"], ended)
        for headers, body in seen:
            want(len(body) == 1, f"not one member: {body}")
            schema("StreamResponse", body)
            (kind, value), = body.items()
            want(value["id" if kind == "task" else "taskId"] == task, f"of another task: {body}")
            if authorization:
                want(headers.get("authorization") == authorization, f"Authorization {headers.get('authorization')!r}")
        want("TASK_STATE_COMPLETED" in str(seen[-1][1]), f"the end is not the last: {seen[-1]}")

    return after


def forged(run):
    """The receiver takes what the server sends, and nothing without its credentials."""
    delivered("Bearer expected-token")(run)
    path = f"/{run.variables['receiver']}"
    port = run.world.hook.server.server_port
    for headers in ({}, {"Authorization": "Bearer guessed"}):
        status, _, _ = wire.http_call("POST", path, headers, {"statusUpdate": {}}, port=port)
        want(status == 401, f"{status} for a notification with {headers}")


def together(leave):
    """Two subscriptions of one task get the same events; with `leave` one goes away in the middle and the other stays."""

    def after(run):
        task = send(run.binding, "tck-long-running together", returnImmediately=True).body["task"]["id"]
        streams = [run.binding.open("subscribe_to_task", {"id": task}) for _ in range(2)]
        got = [[], []]

        def read(i, most):
            with streams[i] as stream:
                for event in stream:
                    got[i].append(event)
                    if len(got[i]) == most:
                        return

        threads = [threading.Thread(target=read, args=(0, 1 if leave else None)), threading.Thread(target=read, args=(1, None))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(wire.PATIENCE)
        want("TASK_STATE_COMPLETED" in str(got[1][-1]), f"the other stream did not go on: {got[1]}")
        if not leave:
            # Both may begin at another state of the task, and then see the same.
            shorter = min(len(g) for g in got) - 1
            want(got[0][-shorter:] == got[1][-shorter:], f"not the same: {got}")

    return after


def again(run):
    """A stream that breaks after its first event goes on in a new subscription."""
    task = send(run.binding, "tck-long-running again", returnImmediately=True).body["task"]["id"]
    with run.binding.open("subscribe_to_task", {"id": task}) as stream:
        first = next(iter(stream))
    want("task" in first, f"the first event is no task: {first}")
    with run.binding.open("subscribe_to_task", {"id": task}) as stream:
        events = list(stream)
    want("task" in events[0] and "TASK_STATE_COMPLETED" in str(events[-1]), f"after the break: {events}")


def grpc_cancelled(run):
    """A stream that its caller cancels ends at once, and the task goes on."""
    task = send(run.binding, "tck-cancel stream", returnImmediately=True).body["task"]["id"]
    stream = run.binding.open("subscribe_to_task", {"id": task})
    next(iter(stream))
    stream.close()
    state = run.binding.call("get_task", {"id": task}).body["status"]["state"]
    want(state in ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"), f"the task is {state}")
    run.binding.call("cancel_task", {"id": task})


def scoped(run):
    """A token that lacks the scope gets 403, and no card."""
    headers = {"A2A-Version": "1.0", "Authorization": f"Bearer {run.variables['insufficientAuthToken']}"}
    status, _, body = wire.http_call("GET", "/extendedAgentCard", headers)
    want(status == 403 and b"supportedInterfaces" not in body, f"{status} {body[:200]}")


def extended(run):
    """With a credential the same path gives the card."""
    answer = run.binding.call("get_extended_agent_card", {})
    want(answer.fault is None and not problems({"skills": {"count_gte": 2}}, answer.body), f"{answer.fault or answer.body}")


# What comes before and after the steps of a test.
BEFORE = {
    "SEC-AUTH-003": other_task,
    "SEC-PUSH-001": hook(),
    "SEC-PUSH-002": hook("Bearer expected-token"),
    "PUSH-DELIV-001": hook(),
    "PUSH-DELIV-002": hook(),
    "PUSH-DELIV-003": hook(),
    "CORE-CTX-001": refused_context,
}
AFTER = {
    "SEC-AUTH-003": other_task_same,
    "SEC-AUTH-004": challenged,
    "SEC-AUTH-006": challenged,
    "SEC-PUSH-001": delivered("Bearer test-token"),
    "SEC-PUSH-002": forged,
    "SEC-EXTCARD-002": scoped,
    "SEC-EXTCARD-004": extended,
    "PUSH-DELIV-001": delivered("Bearer test-token"),
    "PUSH-DELIV-002": delivered(),
    "PUSH-DELIV-003": delivered(),
    "CARD-CACHE-001": cached,
    "CARD-SCHEMA-001": card_schema,
    "DM-SERIAL-002": task_schema,
    "REST-CT-001": content_type,
    "GRPC-STATUS-001": no_task,
    "GRPC-STREAM-002": grpc_cancelled,
    "STREAM-MULTI-001": together(leave=False),
    "STREAM-MULTI-002": together(leave=True),
    "STREAM-RESUB-001": again,
}
# Where another caller is needed, so in the pass with identities alone.
AFTER_WITH_CALLERS = {"CORE-ERR-009": foreign}
# Tests of which only what comes after their steps streams.
STREAMS = {"GRPC-STREAM-002"}
