#!/usr/bin/env python3
"""Orders two cheeseburgers with the stock A2A client (PyPI a2a-sdk==1.3.0).

    order.py URL [--direct] [--wait SECONDS]

URL is where the Agent Card is, such as http://burger-seller.default.svc.cluster.local:8080. The order goes to the URL that the
card gives, or with --direct to URL itself, which is what a port-forward needs.
"""

import argparse
import asyncio
import time

import httpx
from a2a.client import A2ACardResolver, A2AClientError, AgentCardResolutionError, ClientConfig, create_client
from a2a.helpers import get_artifact_text, get_message_text, new_text_message
from a2a.types import GetTaskRequest, Role, SendMessageRequest, TaskState


async def resolve(http, url, patience):
    """The Agent Card; while nobody answers it is asked for again, until the patience is over."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return await A2ACardResolver(http, url).get_agent_card()
        except AgentCardResolutionError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def say(client, text, task=None):
    """Sends one message, on the task if there is one, and returns the task as it is then."""
    ids = {"task_id": task.id, "context_id": task.context_id} if task else {}
    print(f"you    {text}")
    async for event in client.send_message(SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER, **ids))):
        # A stream begins with the task and goes on with what changes in it.
        if event.HasField("task"):
            task = event.task
    if task is None:
        raise SystemExit("the agent answered without a task")
    task = await client.get_task(GetTaskRequest(id=task.id))
    print(f"state  {TaskState.Name(task.status.state)}")
    if task.status.HasField("message"):
        print(f"agent  {get_message_text(task.status.message)}")
    return task


def expect(task, state):
    if task.status.state != state:
        raise SystemExit(f"the task is {TaskState.Name(task.status.state)}, expected {TaskState.Name(state)}")


async def main():
    arguments = argparse.ArgumentParser(description="Orders two cheeseburgers over A2A.")
    arguments.add_argument("url")
    arguments.add_argument("--direct", action="store_true", help="send the order to URL, whatever the card says")
    arguments.add_argument("--wait", type=float, default=0, metavar="SECONDS", help="how long to wait for the card (default 0)")
    options = arguments.parse_args()
    async with httpx.AsyncClient(timeout=150) as http:
        card = await resolve(http, options.url, options.wait)
        print(f"card   {card.name} {card.version}: {card.description}")
        if options.direct:
            for interface in card.supported_interfaces:
                interface.url = options.url
        client = await create_client(card, ClientConfig(httpx_client=http))
        task = await say(client, "I'd like two cheeseburgers")
        expect(task, TaskState.TASK_STATE_INPUT_REQUIRED)
        asked = task.id
        task = await say(client, "yes", task)
        expect(task, TaskState.TASK_STATE_COMPLETED)
        if task.id != asked or not task.artifacts:
            raise SystemExit("the order is not an artifact of the task that asked")
        for artifact in task.artifacts:
            print(f"{artifact.name.lower() or 'result'}  {get_artifact_text(artifact)}")


try:
    asyncio.run(main())
except A2AClientError as error:
    raise SystemExit(f"{type(error).__name__}: {error}") from None
