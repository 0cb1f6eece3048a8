// @a2a-js/sdk 0.3.x. It knows no ListTasks.
import { randomUUID } from 'node:crypto';
import { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';

const [base, binding, hook] = process.argv.slice(2);
const factories = { JSONRPC: JsonRpcTransportFactory, 'HTTP+JSON': RestTransportFactory, GRPC: GrpcTransportFactory };
let client, done;

function want(holds, seen) {
  if (!holds) throw new Error(`got ${JSON.stringify(seen)}`);
}

function request(text, blocking = true) {
  const message = { kind: 'message', messageId: randomUUID(), role: 'user', parts: [{ kind: 'text', text }] };
  return { message, configuration: { blocking } };
}

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

const operations = {
  async send() {
    client = await new ClientFactory({ transports: [new factories[binding]()] }).createFromUrl(base);
    done = await client.sendMessage(request('tck-complete-task hello'));
    want(done.kind === 'task' && done.status.state === 'completed' && done.artifacts[0].parts[0].text === 'Hello from the agent', done);
  },
  async stream() {
    const events = await all(client.sendMessageStream(request('tck-stream-basic go')));
    want(events[0].kind === 'task', events[0]);
    want(events.some((e) => e.kind === 'artifact-update'), events);
    want(events.at(-1).status?.state === 'completed' && events.at(-1).final, events.at(-1));
  },
  async get() {
    const task = await client.getTask({ id: done.id });
    want(task.id === done.id && task.status.state === 'completed', task);
  },
  async cancel() {
    const { id } = await client.sendMessage(request('tck-cancel wait', false));
    const task = await client.cancelTask({ id });
    want(task.status.state === 'canceled', task);
  },
  async subscribe() {
    const { id } = await client.sendMessage(request('tck-long-running work', false));
    const events = await all(client.resubscribeTask({ id }));
    want(events[0].kind === 'task' && events[0].id === id, events[0]);
    want(events.at(-1).status?.state === 'completed', events.at(-1));
  },
  async push() {
    const { id: taskId } = await client.sendMessage(request('tck-input-required ask'));
    const made = await client.setTaskPushNotificationConfig({ taskId, pushNotificationConfig: { id: 'mine', url: hook, token: 't0k3n' } });
    want(made.pushNotificationConfig.url === hook, made);
    const one = { id: taskId, pushNotificationConfigId: 'mine' };
    want((await client.getTaskPushNotificationConfig(one)).pushNotificationConfig.url === hook, 'get');
    const listed = await client.listTaskPushNotificationConfig({ id: taskId });
    want(listed.length === 1, listed);
    await client.deleteTaskPushNotificationConfig(one);
    want((await client.listTaskPushNotificationConfig({ id: taskId })).length === 0, 'not deleted');
  },
  async error() {
    try {
      await client.getTask({ id: randomUUID() });
    } catch (error) {
      want(/TaskNotFound|not.?found/i.test(`${error.constructor.name} ${error.name}: ${error.message}`), `${error.name}: ${error.message}`);
      return;
    }
    want(false, 'found');
  },
};

for (const [op, operation] of Object.entries(operations)) {
  let line = { op, ok: true, detail: '' };
  try {
    await operation();
  } catch (error) {
    line = { op, ok: false, detail: `${error.name}: ${error.message}` };
  }
  console.log(JSON.stringify(line));
}
process.exit(0);
