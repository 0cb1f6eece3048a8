"""A2A 1.0 as a client of each binding speaks it. Written against the specification, not with an SDK's client, so that
what is checked is what is on the wire. gRPC alone uses generated messages: those of the official Python package."""

import base64
import http.client
import json
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

HOST, PORT = "127.0.0.1", 19080
# Longest wait for any byte.
PATIENCE = 40

# Name: JSON-RPC code, HTTP status, gRPC status, reason (A2A 1.0.1, section 5.4).
ERRORS = {
    "TaskNotFoundError": (-32001, 404, "NOT_FOUND", "TASK_NOT_FOUND"),
    "TaskNotCancelableError": (-32002, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE"),
    "PushNotificationNotSupportedError": (-32003, 400, "FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    "UnsupportedOperationError": (-32004, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION"),
    "ContentTypeNotSupportedError": (-32005, 400, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED"),
    "InvalidAgentResponseError": (-32006, 500, "INTERNAL", "INVALID_AGENT_RESPONSE"),
    "ExtendedAgentCardNotConfiguredError": (-32007, 400, "FAILED_PRECONDITION", "EXTENDED_AGENT_CARD_NOT_CONFIGURED"),
    "ExtensionSupportRequiredError": (-32008, 400, "FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED"),
    "VersionNotSupportedError": (-32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED"),
}
BY_REASON = {row[3]: name for name, row in ERRORS.items()}
BY_CODE = {row[0]: name for name, row in ERRORS.items()}

# ACTS operation: method of JSON-RPC and gRPC.
METHODS = {
    "send_message": "SendMessage",
    "send_streaming_message": "SendStreamingMessage",
    "get_task": "GetTask",
    "list_tasks": "ListTasks",
    "cancel_task": "CancelTask",
    "subscribe_to_task": "SubscribeToTask",
    "set_push_notification_config": "CreateTaskPushNotificationConfig",
    "get_push_notification_config": "GetTaskPushNotificationConfig",
    "list_push_notification_configs": "ListTaskPushNotificationConfigs",
    "delete_push_notification_config": "DeleteTaskPushNotificationConfig",
    "get_extended_agent_card": "GetExtendedAgentCard",
}
STREAMS = {"send_streaming_message", "subscribe_to_task"}


class Mismatch(AssertionError):
    """What came is not what the binding prescribes."""


@dataclass
class Fault:
    """An error of A2A, with its name where it is one of the protocol's own."""

    name: str
    message: str
    details: list
    code: object
    data: object = None


@dataclass
class Answer:
    """What a call led to: a body, or a fault, or the events of a stream."""

    status: int = 200
    body: object = None
    fault: Fault = None
    events: list = None
    headers: dict = field(default_factory=dict)


def named(details, fallback):
    for detail in details:
        if isinstance(detail, dict) and str(detail.get("@type", "")).endswith("/google.rpc.ErrorInfo"):
            if detail.get("domain") != "a2a-protocol.org":
                raise Mismatch(f"ErrorInfo of domain {detail.get('domain')!r}")
            return BY_REASON.get(detail.get("reason"), detail.get("reason"))
    return fallback


class Sse:
    """The events of a response, one at a time; closing it is the client going away."""

    def __init__(self, connection, response):
        self.connection, self.response = connection, response

    def __iter__(self):
        data, kind = [], None
        for line in self.response:
            line = line.decode().rstrip("\r\n")
            if not line:
                if data:
                    yield kind, json.loads("\n".join(data))
                data, kind = [], None
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif line.startswith("event:"):
                kind = line[6:].strip()

    def close(self):
        self.connection.close()


def http_request(method, path, headers, body, port=PORT):
    """One request on its own connection. The response is not read yet."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE)
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
    connection.request(method, path, body=body, headers=headers)
    return connection, connection.getresponse()


def http_call(method, path, headers=None, body=None, port=PORT):
    """Status, headers (names in lower case) and the bytes of one answer."""
    connection, response = http_request(method, path, headers or {}, body, port)
    try:
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    finally:
        connection.close()


class Binding:
    """What all bindings have in common."""

    name = ""

    def __init__(self, token=None, headers=None):
        self.extra = dict(headers or {})
        if token:
            self.extra["Authorization"] = f"Bearer {token}"

    def call(self, operation, params):
        """A call; of a stream all events."""
        if operation in STREAMS:
            opened = self.open(operation, params)
            if isinstance(opened, Answer):
                return opened
            with opened as stream:
                return Answer(events=list(stream))
        return self.unary(operation, params)


class Stream:
    """Events of `StreamResponse` shape from an iterator, with a way to leave."""

    def __init__(self, events, close):
        self.events, self.close = events, close

    def __iter__(self):
        return iter(self.events)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class JsonRpc(Binding):
    name = "JSONRPC"

    def headers(self):
        return {"Content-Type": "application/json", "A2A-Version": "1.0", **self.extra}

    def envelope(self, operation, params):
        return {"jsonrpc": "2.0", "id": "call-1", "method": METHODS[operation], "params": params}

    def unary(self, operation, params):
        status, headers, body = http_call("POST", "/", self.headers(), self.envelope(operation, params))
        return self.read(status, headers, body)

    def read(self, status, headers, body):
        document = json.loads(body)
        if status != 200:
            details = document.get("error", {})
            return Answer(status, fault=Fault(f"HTTP {status}", str(details), [], status), headers=headers)
        if not headers.get("content-type", "").startswith("application/json"):
            raise Mismatch(f"Content-Type {headers.get('content-type')!r}")
        result, fault = self.unwrap(document)
        return Answer(status, result, fault, headers=headers)

    def unwrap(self, document):
        if document.get("jsonrpc") != "2.0" or document.get("id") != "call-1" or ("result" in document) == ("error" in document):
            raise Mismatch(f"not an answer to the request: {document}")
        error = document.get("error")
        if error is None:
            return document["result"], None
        details = error.get("data") or []
        name = named(details if isinstance(details, list) else [], BY_CODE.get(error["code"], str(error["code"])))
        if name in ERRORS and ERRORS[name][0] != error["code"]:
            raise Mismatch(f"{name} with code {error['code']}")
        return None, Fault(name, error["message"], details, error["code"], details)

    def open(self, operation, params):
        headers = {**self.headers(), "Accept": "text/event-stream"}
        connection, response = http_request("POST", "/", headers, self.envelope(operation, params))
        if not response.getheader("Content-Type", "").startswith("text/event-stream"):
            answer = self.read(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
            connection.close()
            return answer
        sse = Sse(connection, response)

        def events():
            for _, document in sse:
                result, fault = self.unwrap(document)
                yield {"error": fault} if fault else result

        return Stream(events(), sse.close)


class HttpJson(Binding):
    name = "HTTP+JSON"

    def headers(self, body):
        kind = {"Content-Type": "application/a2a+json"} if body is not None else {}
        return {"A2A-Version": "1.0", **kind, **self.extra}

    def route(self, operation, params):
        rest = dict(params)

        def take(name):
            return quote(str(rest.pop(name)), safe="")

        match operation:
            case "send_message":
                return "POST", "/message:send", rest
            case "send_streaming_message":
                return "POST", "/message:stream", rest
            case "get_task":
                return "GET", f"/tasks/{take('id')}{self.query(rest)}", None
            case "list_tasks":
                return "GET", f"/tasks{self.query(rest)}", None
            case "cancel_task":
                return "POST", f"/tasks/{take('id')}:cancel", rest
            case "subscribe_to_task":
                return "POST", f"/tasks/{take('id')}:subscribe", None
            case "set_push_notification_config":
                return "POST", f"/tasks/{take('taskId')}/pushNotificationConfigs", rest
            case "get_push_notification_config":
                return "GET", f"/tasks/{take('taskId')}/pushNotificationConfigs/{take('id')}", None
            case "list_push_notification_configs":
                return "GET", f"/tasks/{take('taskId')}/pushNotificationConfigs{self.query(rest)}", None
            case "delete_push_notification_config":
                return "DELETE", f"/tasks/{take('taskId')}/pushNotificationConfigs/{take('id')}", None
            case "get_extended_agent_card":
                return "GET", "/extendedAgentCard", None

    @staticmethod
    def query(params):
        flat = {k: str(v).lower() if isinstance(v, bool) else v for k, v in params.items()}
        return f"?{urlencode(flat)}" if flat else ""

    def unary(self, operation, params):
        method, path, body = self.route(operation, params)
        return self.read(*http_call(method, path, self.headers(body), body))

    def read(self, status, headers, body):
        if status == 204:
            return Answer(200, None, headers=headers)
        document = json.loads(body)
        if status < 300:
            return Answer(status, document, headers=headers)
        return Answer(status, fault=self.fault(document, status), headers=headers)

    @staticmethod
    def fault(document, status=None):
        error = document.get("error")
        if not isinstance(error, dict):
            raise Mismatch(f"no google.rpc error body: {document}")
        details = error.get("details") or []
        name = named(details, str(error.get("status")))
        if error.get("code") != (status or error.get("code")):
            raise Mismatch(f"HTTP {status} with code {error.get('code')} in the body")
        if name in ERRORS and ERRORS[name][1:3] != (error.get("code"), error.get("status")):
            raise Mismatch(f"{name} as {error.get('code')} {error.get('status')}")
        return Fault(name, error.get("message"), details, error.get("code"), details)

    def open(self, operation, params):
        method, path, body = self.route(operation, params)
        headers = {**self.headers(body), "Accept": "text/event-stream"}
        connection, response = http_request(method, path, headers, body)
        if not response.getheader("Content-Type", "").startswith("text/event-stream"):
            answer = self.read(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
            connection.close()
            return answer
        sse = Sse(connection, response)

        def events():
            for kind, document in sse:
                yield {"error": self.fault(document)} if kind == "error" else document

        return Stream(events(), sse.close)


class Grpc(Binding):
    name = "GRPC"
    # Members of answers that ProtoJSON leaves out when they have their zero value, and a JSON binding must not.
    REQUIRED = {"ListTasks": {"tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0}}

    def __init__(self, token=None, headers=None):
        super().__init__(token, headers)
        import grpc
        from a2a.types import a2a_pb2, a2a_pb2_grpc

        self.grpc, self.pb = grpc, a2a_pb2
        self.channel = grpc.insecure_channel(f"{HOST}:{PORT}", options=[("grpc.max_receive_message_length", 64 << 20)])
        self.stub = a2a_pb2_grpc.A2AServiceStub(self.channel)

    def request(self, operation, params):
        from google.protobuf import json_format

        service = self.pb.DESCRIPTOR.services_by_name["A2AService"]
        kind = service.methods_by_name[METHODS[operation]].input_type
        return json_format.ParseDict(params, getattr(self.pb, kind.name)())

    def metadata(self):
        return [("a2a-version", "1.0"), *((k.lower(), v) for k, v in self.extra.items())]

    def dictionary(self, message, method=None):
        from google.protobuf import json_format

        return {**self.REQUIRED.get(method, {}), **json_format.MessageToDict(message)}

    def unary(self, operation, params):
        method = METHODS[operation]
        try:
            call = getattr(self.stub, method)
            message = call(self.request(operation, params), metadata=self.metadata(), timeout=PATIENCE)
        except self.grpc.RpcError as error:
            return Answer(fault=self.fault(error))
        return Answer(body=self.dictionary(message, method))

    def fault(self, error):
        from google.protobuf import any_pb2, json_format
        from google.rpc import error_details_pb2, status_pb2  # noqa: F401  (registers the types of details)

        details = []
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                details = [json_format.MessageToDict(d) for d in status_pb2.Status.FromString(value).details]
        name = named(details, error.code().name)
        if name in ERRORS and ERRORS[name][2] != error.code().name:
            raise Mismatch(f"{name} as {error.code().name}")
        return Fault(name, error.details(), details, error.code().name, details)

    def open(self, operation, params):
        call = getattr(self.stub, METHODS[operation])(self.request(operation, params), metadata=self.metadata(), timeout=PATIENCE)
        try:
            first = next(call)
        except StopIteration:
            return Answer(events=[])
        except self.grpc.RpcError as error:
            return Answer(fault=self.fault(error))

        def events():
            yield self.dictionary(first)
            try:
                for message in call:
                    yield self.dictionary(message)
            except self.grpc.RpcError as error:
                yield {"error": self.fault(error)}

        return Stream(events(), call.cancel)


BINDINGS = [JsonRpc, HttpJson, Grpc]


def card(version="1.0", token=None):
    """Status, headers and the public card."""
    headers = {"A2A-Version": version} if version else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    status, headers, body = http_call("GET", "/.well-known/agent-card.json", headers)
    return status, headers, json.loads(body)


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
