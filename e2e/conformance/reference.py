#!/usr/bin/env python3
"""reference.py PORT GRPC_PORT VERSION...: the official Python server with the behaviours of the matrix.

In place of the sidecar (`REFERENCE=1 ./run matrix`) it is the reproduction that a waiver needs: what a client cannot do
here either is not the sidecar's fault. Behind it, it is an agent that speaks A2A itself, in these versions."""

import asyncio
import logging
import sys
import uuid

import grpc
import uvicorn
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.helpers.proto_helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.request_handlers.grpc_handler import GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2_grpc
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from starlette.applications import Starlette


class Agent(AgentExecutor):
    def __init__(self):
        self.cancelled = {}

    async def execute(self, context, queue):
        await queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        name = context.get_user_input().split()[0]
        if name == "tck-input-required":
            await updater.requires_input()
            return
        await updater.start_work()
        if name == "tck-cancel":
            self.cancelled[context.task_id] = asyncio.Event()
            await self.cancelled[context.task_id].wait()
            return
        if name == "tck-long-running":
            await asyncio.sleep(1)
        await updater.add_artifact([Part(text="Hello from the agent")], artifact_id=str(uuid.uuid4()))
        await updater.complete()

    async def cancel(self, context, queue):
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()
        self.cancelled[context.task_id].set()


async def main(port, grpc_port, versions):
    logging.disable(logging.ERROR)
    base, grpc_address = f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}"
    interfaces = [
        AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
        for version in versions
        for binding, url in (("JSONRPC", base), ("HTTP+JSON", base), ("GRPC", grpc_address))
    ]
    card = AgentCard(
        name="reference",
        description="Does what the text of a message says",
        version="1.0.0",
        supported_interfaces=interfaces,
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="act", name="Act", description="Acts by a script", tags=["test"])],
    )
    handler = DefaultRequestHandlerV2(
        agent_executor=Agent(),
        task_store=InMemoryTaskStore(),
        agent_card=card,
        push_config_store=InMemoryPushNotificationConfigStore(),
    )
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
        *create_rest_routes(handler, enable_v0_3_compat=True),
    ]
    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
    a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(CompatGrpcHandler(handler), server)
    server.add_insecure_port(grpc_address)
    await server.start()
    config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="critical", access_log=False)
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
