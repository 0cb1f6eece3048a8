// sdk_v1.mjs URL MODE PLAN: npm `@modelcontextprotocol/sdk` 1.x. What a driver is, the README beside this says.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const modules = createRequire(`${process.env.MCP_NODE}/package.json`);
const load = (path) => import(pathToFileURL(modules.resolve(`@modelcontextprotocol/sdk/client/${path}`)));
const { Client } = await load('index.js');
const { StreamableHTTPClientTransport } = await load('streamableHttp.js');

const [url, , text] = process.argv.slice(2);
const plan = JSON.parse(text);
const client = new Client({ name: 'matrix', version: '1.0.0' });
const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
const found = { revision: transport.protocolVersion, tools: [], calls: [], resources: [], prompts: [] };
found.tools = (await client.listTools()).tools.map((tool) => tool.name);
for (const call of plan.calls) found.calls.push(await client.callTool(call));
for (const uri of plan.resources) found.resources.push(await client.readResource({ uri }));
for (const prompt of plan.prompts) found.prompts.push(await client.getPrompt(prompt));
await client.close();
console.log(JSON.stringify(found));
