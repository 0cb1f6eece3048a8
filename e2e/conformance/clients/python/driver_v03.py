"""a2a-sdk 0.3.x. It knows no ListTasks, and of push configurations only set and get."""

import asyncio
import sys
import uuid

import grpc
import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.types import (
    GetTaskPushNotificationConfigParams,
    Message,
    Part,
    PushNotificationConfig,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskState,
    TextPart,
)
from report import run, want


class Driver:
    def __init__(self, base, binding, hook):
        self.base, self.binding, self.hook = base, binding, hook

    async def client(self, streaming=False, polling=False):
        config = ClientConfig(
            streaming=streaming,
            polling=polling,
            supported_transports=[self.binding],
            httpx_client=httpx.AsyncClient(timeout=30),
            grpc_channel_factory=lambda url: grpc.aio.insecure_channel(url),
        )
        return await ClientFactory.connect(self.base, config)

    @staticmethod
    def message(text):
        return Message(message_id=str(uuid.uuid4()), role=Role.user, parts=[Part(root=TextPart(text=text))])

    async def task(self, client, text):
        events = [e async for e in client.send_message(self.message(text))]
        want(isinstance(events[-1], tuple) and isinstance(events[-1][0], Task), events[-1])
        return events[-1][0]

    async def send(self):
        self.plain, self.streaming = await self.client(), await self.client(streaming=True)
        self.polling = await self.client(polling=True)
        self.done = await self.task(self.plain, "tck-complete-task hello")
        want(self.done.status.state == TaskState.completed, self.done)
        want(self.done.artifacts[0].parts[0].root.text == "Hello from the agent", self.done)

    async def stream(self):
        events = [e async for e in self.streaming.send_message(self.message("tck-stream-basic go"))]
        want(events[0][1] is None, f"first: {events[0]}")
        want(any(isinstance(update, TaskArtifactUpdateEvent) for _, update in events), "no artifact")
        task, update = events[-1]
        want(task.status.state == TaskState.completed and update.final, f"last: {events[-1]}")
        want(task.artifacts, task)

    async def get(self):
        task = await self.plain.get_task(TaskQueryParams(id=self.done.id))
        want(task.id == self.done.id and task.status.state == TaskState.completed, task)

    async def cancel(self):
        task = await self.task(self.polling, "tck-cancel wait")
        task = await self.plain.cancel_task(TaskIdParams(id=task.id))
        want(task.status.state == TaskState.canceled, task)

    async def subscribe(self):
        task = await self.task(self.polling, "tck-long-running work")
        events = [e async for e in self.streaming.resubscribe(TaskIdParams(id=task.id))]
        want(events[0][0].id == task.id, f"first: {events[0]}")
        want(events[-1][0].status.state == TaskState.completed, f"last: {events[-1]}")

    async def push(self):
        task = await self.task(self.plain, "tck-input-required ask")
        config = PushNotificationConfig(id="mine", url=self.hook, token="t0k3n")
        made = await self.plain.set_task_callback(TaskPushNotificationConfig(task_id=task.id, push_notification_config=config))
        want(made.push_notification_config.url == self.hook, made)
        one = GetTaskPushNotificationConfigParams(id=task.id, push_notification_config_id="mine")
        got = await self.plain.get_task_callback(one)
        want(got.push_notification_config.url == self.hook and got.task_id == task.id, got)

    async def error(self):
        try:
            await self.plain.get_task(TaskQueryParams(id=str(uuid.uuid4())))
        except Exception as error:  # noqa: BLE001  (each of its transports has an error of its own)
            text = f"{type(error).__name__}: {error}"
            want(any(mark in text for mark in ("-32001", "404", "NOT_FOUND", "not found")), text)
            return
        raise AssertionError("found")


if __name__ == "__main__":
    d = Driver(*sys.argv[1:])
    names = ["send", "stream", "get", "cancel", "subscribe", "push", "error"]
    asyncio.run(run([(name, getattr(d, name)) for name in names]))
