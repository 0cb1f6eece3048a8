import { createServer } from "node:http";

process.on("SIGTERM", () => process.exit(0));
createServer(async (request, response) => {
  if (request.method !== "POST") return response.writeHead(404).end();
  const turn = JSON.parse(Buffer.concat(await request.toArray()));
  const answer = turn.task.state === "TASK_STATE_INPUT_REQUIRED"
    ? { text: `${turn.text === "yes" ? "Ordered" : "Dropped"}: ${turn.context.memo}` }
    : { state: "input-required", text: `Order "${turn.text}"? Say yes.`, memo: turn.text };
  response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(answer));
}).listen(process.env.PORT ?? 8000, "127.0.0.1");
