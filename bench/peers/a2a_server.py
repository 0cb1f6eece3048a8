"""The A2A peer: an agent on a2a-sdk's own server, in memory: a2a_server.py PORT.

It answers what bench-agent answers behind the sidecar: a completed task with one text artifact, or a bare message.
"""
import logging
import sys

import uvicorn
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from starlette.applications import Starlette

PORT = int(sys.argv[1])
TEXT = "One burger, ready at 12:30."


class Agent(AgentExecutor):
    async def execute(self, context, event_queue):
        if context.get_user_input() == "message":
            await event_queue.enqueue_event(new_text_message(TEXT))
            return
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.add_artifact([Part(text=TEXT)])
        await updater.complete()

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


logging.disable(logging.WARNING)
url = f"http://127.0.0.1:{PORT}/"
card = AgentCard(
    name="seller",
    description="Sells burgers",
    version="1.0.0",
    supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")],
    capabilities=AgentCapabilities(),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="sell", name="Sell", description="Sells a burger", tags=["food"])],
)
handler = DefaultRequestHandlerV2(agent_executor=Agent(), task_store=InMemoryTaskStore(), agent_card=card)
app = Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])
uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="critical", access_log=False, loop="uvloop", http="httptools")
