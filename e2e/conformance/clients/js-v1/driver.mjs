// @a2a-js/sdk 1.x.
import { randomUUID } from 'node:crypto';
import { ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from '@a2a-js/sdk/client';
import { GrpcTransportFactory } from '@a2a-js/sdk/client/grpc';

const [base, binding, hook] = process.argv.slice(2);
const COMPLETED = 3, CANCELED = 5;
const factories = { JSONRPC: JsonRpcTransportFactory, 'HTTP+JSON': RestTransportFactory, GRPC: GrpcTransportFactory };
let client, done;

function want(holds, seen) {
  if (!holds) throw new Error(`got ${JSON.stringify(seen)}`);
}

function request(text, returnImmediately = false) {
  const part = { content: { $case: 'text', value: text }, metadata: undefined, filename: '', mediaType: '' };
  const message = { messageId: randomUUID(), contextId: '', taskId: '', role: 1, parts: [part], metadata: undefined, extensions: [], referenceTaskIds: [] };
  const configuration = { acceptedOutputModes: [], taskPushNotificationConfig: undefined, returnImmediately };
  return { tenant: '', message, configuration, metadata: undefined };
}

async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event.payload);
  return events;
}

const operations = {
  async send() {
    client = await new ClientFactory({ transports: [new factories[binding]({ legacyCompat: { enabled: true } })] }).createFromUrl(base);
    done = await client.sendMessage(request('tck-complete-task hello'));
    want(done.status.state === COMPLETED && done.artifacts[0].parts[0].content.value === 'Hello from the agent', done);
  },
  async stream() {
    const events = await all(client.sendMessageStream(request('tck-stream-basic go')));
    want(events[0].$case === 'task', events[0]);
    want(events.some((e) => e.$case === 'artifactUpdate'), events);
    want(events.at(-1).value.status?.state === COMPLETED, events.at(-1));
  },
  async get() {
    const task = await client.getTask({ tenant: '', id: done.id });
    want(task.id === done.id && task.status.state === COMPLETED, task);
  },
  async list() {
    const found = await client.listTasks({ tenant: '', contextId: done.contextId, status: 0, pageToken: '', statusTimestampAfter: undefined });
    want(found.tasks.length === 1 && found.tasks[0].id === done.id, found);
  },
  async cancel() {
    const { id } = await client.sendMessage(request('tck-cancel wait', true));
    const task = await client.cancelTask({ tenant: '', id, metadata: undefined });
    want(task.status.state === CANCELED, task);
  },
  async subscribe() {
    const { id } = await client.sendMessage(request('tck-long-running work', true));
    const events = await all(client.resubscribeTask({ tenant: '', id }));
    want(events[0].$case === 'task' && events[0].value.id === id, events[0]);
    want(events.at(-1).value.status?.state === COMPLETED, events.at(-1));
  },
  async push() {
    const { id: taskId } = await client.sendMessage(request('tck-input-required ask'));
    const config = { tenant: '', id: '', taskId, url: hook, token: 't0k3n', authentication: undefined };
    const made = await client.createTaskPushNotificationConfig(config);
    want(made.id && made.url === hook, made);
    const one = { tenant: '', taskId, id: made.id };
    want((await client.getTaskPushNotificationConfig(one)).url === hook, 'get');
    const every = { tenant: '', taskId, pageSize: 0, pageToken: '' };
    const listed = await client.listTaskPushNotificationConfig(every);
    want(listed.configs.length === 1 && listed.configs[0].id === made.id, listed);
    await client.deleteTaskPushNotificationConfig(one);
    want((await client.listTaskPushNotificationConfig(every)).configs.length === 0, 'not deleted');
  },
  async error() {
    try {
      await client.getTask({ tenant: '', id: randomUUID() });
    } catch (error) {
      want(error.name === 'TaskNotFoundError', `${error.name}: ${error.message}`);
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
