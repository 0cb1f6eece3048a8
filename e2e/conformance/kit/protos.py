"""The sidecar's protos say what those of the Python SDK say: names, numbers, JSON names, presence, services."""

import functools
import pathlib
import tempfile

import grpc_tools
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

KNOWN = pathlib.Path(grpc_tools.__file__).parent / "_proto"
FOLDER = pathlib.Path(__file__).resolve().parents[3] / "sidecar" / "proto"
PROTOS = {"a2a_v1.proto": a2a_pb2, "a2a_v03.proto": a2a_v0_3_pb2}


def facts(file):
    """What two descriptors must have in common to speak to each other."""

    def of_message(message, outer):
        name = f"{outer}.{message.name}"
        yield (name,)
        for field in message.field:
            oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
            yield (name, field.name, field.number, field.label, field.type, field.type_name, field.json_name, oneof, field.proto3_optional)
        for inner in message.nested_type:
            yield from of_message(inner, name)

    for message in file.message_type:
        yield from of_message(message, file.package)
    for enum in file.enum_type:
        yield from ((file.package, enum.name, value.name, value.number) for value in enum.value)
    for service in file.service:
        for rpc in service.method:
            yield (file.package, service.name, rpc.name, rpc.input_type, rpc.output_type, rpc.client_streaming, rpc.server_streaming)


def compiled(proto):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "descriptors")
        if protoc.main(["protoc", f"-I{FOLDER}", f"-I{KNOWN}", f"--descriptor_set_out={out}", proto]):
            raise SystemExit(f"{proto} does not compile")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[-1]


@functools.cache
def differences(proto):
    theirs = descriptor_pb2.FileDescriptorProto.FromString(PROTOS[proto].DESCRIPTOR.serialized_pb)
    return sorted(map(str, set(facts(compiled(proto))) ^ set(facts(theirs))))


def checks():
    for proto in PROTOS:
        yield f"{proto} is that of the SDK {differences(proto)[:5]}", not differences(proto)
