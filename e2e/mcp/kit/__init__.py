"""The MCP kit: the sidecar and its shims as clients in the field see them."""
