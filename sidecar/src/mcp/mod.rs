//! MCP over stdio: endpoint, session, pool, pipe.
