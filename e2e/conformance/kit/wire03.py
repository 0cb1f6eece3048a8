"""A2A 0.3 as a client of each binding speaks it, behind the same calls as `wire`: parameters and results are those of
1.0, translated here by hand, so that a test can be written once. Only what the tests of both versions need."""

import json
import uuid

from . import wire
from .wire import Answer, Fault, Mismatch, Sse, Stream, http_call, http_request

STATES = {
    "submitted": "TASK_STATE_SUBMITTED",
    "working": "TASK_STATE_WORKING",
    "input-required": "TASK_STATE_INPUT_REQUIRED",
    "auth-required": "TASK_STATE_AUTH_REQUIRED",
    "completed": "TASK_STATE_COMPLETED",
    "canceled": "TASK_STATE_CANCELED",
    "failed": "TASK_STATE_FAILED",
    "rejected": "TASK_STATE_REJECTED",
}

KINDS = {"task": "task", "message": "message", "status-update": "statusUpdate", "artifact-update": "artifactUpdate"}


def old_part(part, proto):
    """A part of 1.0 as one of 0.3; a data part that is no object is wrapped, as the SDKs do."""
    meta = dict(part.get("metadata", {}))
    if "data" in part:
        data = part["data"]
        if not isinstance(data, dict):
            data, meta = {"value": data}, {**meta, "data_part_compat": True}
        old = {"data": {"data": data}} if proto else {"kind": "data", "data": data}
    else:
        old = {"text": part["text"]} if proto else {"kind": "text", "text": part["text"]}
    return {**old, "metadata": meta} if meta else old


def new_part(part, proto):
    meta = dict(part.get("metadata", {}))
    if not proto and part.get("kind") not in ("text", "data"):
        raise Mismatch(f"a part of kind {part.get('kind')!r}")
    if "data" in part:
        data = part["data"]["data"] if proto else part["data"]
        if meta.pop("data_part_compat", None):
            data = data["value"]
        new = {"data": data}
    else:
        new = {"text": part["text"]}
    return {**new, "metadata": meta} if meta else new


def new_parts(node, key, proto):
    return {**node, "parts": [new_part(p, proto) for p in node.get(key, [])]}


def new_status(status, proto):
    state = status["state"] if proto else STATES[status["state"]]
    state = {"TASK_STATE_CANCELLED": "TASK_STATE_CANCELED"}.get(state, state)
    said = status.get("update" if proto else "message")
    return {**status, "state": state, **({"message": new_parts(said, "content" if proto else "parts", proto)} if said else {})}


def new_task(task, proto):
    artifacts = [new_parts(a, "parts", proto) for a in task.get("artifacts", [])]
    return {**task, "status": new_status(task["status"], proto), "artifacts": artifacts}


def new_event(event, proto):
    """An event or a result of 0.3 as a `StreamResponse` of 1.0."""
    if not proto:
        event = {KINDS[event["kind"]]: event}
    (kind, node), = event.items()
    match kind:
        case "task":
            return {"task": new_task(node, proto)}
        case "message":
            return {"message": new_parts(node, "content" if proto else "parts", proto)}
        case "statusUpdate":
            return {"statusUpdate": {**node, "status": new_status(node["status"], proto)}}
        case "artifactUpdate":
            return {"artifactUpdate": {**node, "artifact": new_parts(node["artifact"], "parts", proto)}}
    raise Mismatch(f"an event of kind {kind!r}")


def old_send(params, proto):
    message = params["message"]
    parts = [old_part(p, proto) for p in message["parts"]]
    old = {k: v for k, v in message.items() if k not in ("parts", "role")}
    if proto:
        old = {**old, "role": "ROLE_USER", "content": parts}
    else:
        old = {**old, "kind": "message", "role": "user", "parts": parts}
    wait = not params.get("configuration", {}).get("returnImmediately", False)
    more = {k: v for k, v in params.items() if k not in ("message", "configuration")}
    # In ProtoJSON false is what absence means, and the SDKs wait unless told not to.
    return {"message": old, "configuration": {"blocking": wait}, **more}


class OldJsonRpc(wire.Binding):
    name = "JSONRPC/0.3"
    METHODS = {
        "send_message": "message/send",
        "send_streaming_message": "message/stream",
        "get_task": "tasks/get",
        "cancel_task": "tasks/cancel",
        "subscribe_to_task": "tasks/resubscribe",
    }

    def request(self, operation, params, accept):
        params = old_send(params, False) if "message" in params else params
        headers = {"Content-Type": "application/json", "Accept": accept, **self.extra}
        body = {"jsonrpc": "2.0", "id": 7, "method": self.METHODS[operation], "params": params}
        return "POST", "/", headers, body

    def unary(self, operation, params):
        status, headers, body = http_call(*self.request(operation, params, "application/json"))
        return self.read(status, headers, body)

    def read(self, status, headers, body):
        document = json.loads(body)
        if document.get("id") != 7:
            raise Mismatch(f"another's answer: {document}")
        if "error" in document:
            error = document["error"]
            name = wire.BY_CODE.get(error["code"], str(error["code"]))
            return Answer(status, fault=Fault(name, error["message"], [], error["code"]), headers=headers)
        event = new_event(document["result"], False)
        return Answer(status, event, headers=headers)

    def call(self, operation, params):
        answer = super().call(operation, params)
        if operation in ("get_task", "cancel_task") and answer.body:
            answer.body = answer.body["task"]
        return answer

    def open(self, operation, params):
        connection, response = http_request(*self.request(operation, params, "text/event-stream"))
        if not response.getheader("Content-Type", "").startswith("text/event-stream"):
            return self.read(response.status, {}, response.read())
        sse = Sse(connection, response)

        def events():
            for _, document in sse:
                yield {"error": document["error"]} if "error" in document else new_event(document["result"], False)

        return Stream(events(), sse.close)


class OldHttpJson(wire.Binding):
    name = "HTTP+JSON/0.3"

    def request(self, operation, params, accept):
        headers = {"Content-Type": "application/json", "Accept": accept, **self.extra}
        match operation:
            case "send_message":
                return "POST", "/v1/message:send", headers, old_send(params, True)
            case "send_streaming_message":
                return "POST", "/v1/message:stream", headers, old_send(params, True)
            case "get_task":
                return "GET", f"/v1/tasks/{params['id']}", headers, None
            case "cancel_task":
                return "POST", f"/v1/tasks/{params['id']}:cancel", headers, {}
            case "subscribe_to_task":
                return "GET", f"/v1/tasks/{params['id']}:subscribe", headers, None

    def unary(self, operation, params):
        status, headers, body = http_call(*self.request(operation, params, "application/json"))
        document = json.loads(body)
        if status >= 300:
            return Answer(status, fault=Fault(f"HTTP {status}", str(document), [], status), headers=headers)
        result = new_event(document, True) if operation == "send_message" else new_task(document, True)
        return Answer(status, result, headers=headers)

    def open(self, operation, params):
        connection, response = http_request(*self.request(operation, params, "text/event-stream"))
        if not response.getheader("Content-Type", "").startswith("text/event-stream"):
            return Answer(response.status, fault=Fault(f"HTTP {response.status}", str(response.read()), [], response.status))
        sse = Sse(connection, response)

        def events():
            for kind, document in sse:
                yield {"error": document} if kind == "error" else new_event(document, True)

        return Stream(events(), sse.close)


class OldGrpc(wire.Binding):
    name = "GRPC/0.3"
    METHODS = {
        "send_message": "SendMessage",
        "send_streaming_message": "SendStreamingMessage",
        "get_task": "GetTask",
        "cancel_task": "CancelTask",
        "subscribe_to_task": "TaskSubscription",
    }

    def __init__(self, token=None, headers=None):
        super().__init__(token, headers)
        import grpc
        from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc

        self.grpc, self.pb = grpc, a2a_v0_3_pb2
        options = [("grpc.max_receive_message_length", 64 << 20)]
        self.stub = a2a_v0_3_pb2_grpc.A2AServiceStub(grpc.insecure_channel(f"{wire.HOST}:{wire.PORT}", options=options))

    def start(self, operation, params):
        from google.protobuf import json_format

        method = self.METHODS[operation]
        kind = self.pb.DESCRIPTOR.services_by_name["A2AService"].methods_by_name[method].input_type
        params = old_send(params, True) if "message" in params else {"name": f"tasks/{params['id']}"}
        request = json_format.ParseDict(params, getattr(self.pb, kind.name)())
        return getattr(self.stub, method)(request, metadata=list(self.extra.items()), timeout=wire.PATIENCE)

    @staticmethod
    def dictionary(message):
        from google.protobuf import json_format

        return json_format.MessageToDict(message)

    def unary(self, operation, params):
        try:
            result = self.dictionary(self.start(operation, params))
        except self.grpc.RpcError as error:
            return Answer(fault=Fault(error.code().name, error.details(), [], error.code().name))
        return Answer(body=new_event(result, True) if operation == "send_message" else new_task(result, True))

    def open(self, operation, params):
        call = self.start(operation, params)

        def events():
            try:
                for message in call:
                    yield new_event(self.dictionary(message), True)
            except self.grpc.RpcError as error:
                yield {"error": Fault(error.code().name, error.details(), [], error.code().name)}

        return Stream(events(), call.cancel)


BINDINGS = [OldJsonRpc, OldHttpJson, OldGrpc]


def message(parts, **members):
    """A message of 1.0 with an id of its own."""
    return {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": parts, **members}
