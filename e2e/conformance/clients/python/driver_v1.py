"""a2a-sdk 1.x."""

import asyncio
import sys
import uuid

import grpc
from a2a.client import ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import TaskNotFoundError
from report import run, want

COMPLETED, CANCELED = pb.TaskState.TASK_STATE_COMPLETED, pb.TaskState.TASK_STATE_CANCELED


class Driver:
    def __init__(self, base, binding, hook):
        self.base, self.binding, self.hook = base, binding, hook

    async def client(self, streaming):
        config = ClientConfig(
            streaming=streaming,
            supported_protocol_bindings=[self.binding],
            grpc_channel_factory=lambda url: grpc.aio.insecure_channel(url),
        )
        return await ClientFactory(config).create_from_url(self.base)

    @staticmethod
    def request(text, at_once=False):
        message = pb.Message(message_id=str(uuid.uuid4()), role=pb.Role.ROLE_USER, parts=[pb.Part(text=text)])
        return pb.SendMessageRequest(message=message, configuration=pb.SendMessageConfiguration(return_immediately=at_once))

    async def task(self, text, at_once=False):
        events = [e async for e in self.plain.send_message(self.request(text, at_once))]
        return events[-1].task

    async def send(self):
        self.plain, self.streaming = await self.client(False), await self.client(True)
        self.done = await self.task("tck-complete-task hello")
        want(self.done.status.state == COMPLETED, self.done)
        want(self.done.artifacts[0].parts[0].text == "Hello from the agent", self.done)

    async def stream(self):
        events = [e async for e in self.streaming.send_message(self.request("tck-stream-basic go"))]
        want(events[0].HasField("task"), f"first: {events[0]}")
        want(any(e.HasField("artifact_update") for e in events), "no artifact")
        want(events[-1].status_update.status.state == COMPLETED, f"last: {events[-1]}")

    async def get(self):
        task = await self.plain.get_task(pb.GetTaskRequest(id=self.done.id))
        want(task.id == self.done.id and task.status.state == COMPLETED, task)

    async def list(self):
        found = await self.plain.list_tasks(pb.ListTasksRequest(context_id=self.done.context_id))
        want([t.id for t in found.tasks] == [self.done.id] and found.total_size == 1, found)

    async def cancel(self):
        task = await self.task("tck-cancel wait", at_once=True)
        task = await self.plain.cancel_task(pb.CancelTaskRequest(id=task.id))
        want(task.status.state == CANCELED, task)

    async def subscribe(self):
        task = await self.task("tck-long-running work", at_once=True)
        events = [e async for e in self.streaming.subscribe(pb.SubscribeToTaskRequest(id=task.id))]
        want(events[0].task.id == task.id, f"first: {events[0]}")
        want(events[-1].status_update.status.state == COMPLETED, f"last: {events[-1]}")

    async def push(self):
        task = await self.task("tck-input-required ask")
        made = await self.plain.create_task_push_notification_config(
            pb.TaskPushNotificationConfig(task_id=task.id, url=self.hook, token="t0k3n")
        )
        want(made.id and made.url == self.hook, made)
        one = pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id=made.id)
        want((await self.plain.get_task_push_notification_config(one)).url == self.hook, "get")
        every = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
        listed = await self.plain.list_task_push_notification_configs(every)
        want([c.id for c in listed.configs] == [made.id], listed)
        gone = pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id=made.id)
        await self.plain.delete_task_push_notification_config(gone)
        listed = await self.plain.list_task_push_notification_configs(every)
        want(not listed.configs, listed)

    async def error(self):
        try:
            await self.plain.get_task(pb.GetTaskRequest(id=str(uuid.uuid4())))
        except TaskNotFoundError:
            return
        raise AssertionError("found")


if __name__ == "__main__":
    d = Driver(*sys.argv[1:])
    names = ["send", "stream", "get", "list", "cancel", "subscribe", "push", "error"]
    asyncio.run(run([(name, getattr(d, name)) for name in names]))
