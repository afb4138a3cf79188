"""Tools that models call: the agent loop, functions and MCP servers as tools, calls in JSON."""
