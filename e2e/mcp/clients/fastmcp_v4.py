"""fastmcp_v4.py URL MODE PLAN: `fastmcp` 4.x. What a driver is, the README beside this says."""

import asyncio
import json
import sys

from fastmcp import Client


def wire(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def main(url, mode, plan):
    async with Client(url, mode=mode) as client:
        return {
            "revision": client.session.protocol_version,
            "tools": [tool.name for tool in await client.list_tools()],
            "calls": [wire(await client.call_tool_mcp(c["name"], c["arguments"])) for c in plan["calls"]],
            "resources": [wire(await client.read_resource_mcp(uri)) for uri in plan["resources"]],
            "prompts": [wire(await client.get_prompt_mcp(p["name"], p["arguments"])) for p in plan["prompts"]],
        }


print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))))
