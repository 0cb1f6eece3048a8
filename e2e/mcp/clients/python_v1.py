"""python_v1.py URL MODE PLAN: `mcp` 1.x. What a driver is, the README beside this says."""

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


def wire(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def main(url, plan):
    async with streamable_http_client(url) as (incoming, outgoing, _), ClientSession(incoming, outgoing) as session:
        hello = await session.initialize()
        return {
            "revision": hello.protocolVersion,
            "tools": [tool.name for tool in (await session.list_tools()).tools],
            "calls": [wire(await session.call_tool(c["name"], c["arguments"])) for c in plan["calls"]],
            "resources": [wire(await session.read_resource(uri)) for uri in plan["resources"]],
            "prompts": [wire(await session.get_prompt(p["name"], p["arguments"])) for p in plan["prompts"]],
        }


print(json.dumps(asyncio.run(main(sys.argv[1], json.loads(sys.argv[3])))))
