"""A little MCP server: `python mcp_server.py [MODE]` speaks over stdio.

MODE "broken" ends at once with a message.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("little")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def weather(city: str, days: int = 1) -> str:
    """The weather in a city."""
    return f"rain in {city} for {days}"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def put(path: str, text: str) -> str:
    Path(path).write_text(text)
    return "put"


@server.tool()
def append(path: str, text: str) -> str:
    """Append a line to a file."""
    with Path(path).open("a") as file:
        file.write(f"{text}\n")
    return f"appended {text}"


@server.tool()
def count(text: str) -> dict[str, int]:
    return {"characters": len(text)}


@server.tool()
def picture() -> list[str | Image]:
    return ["a dot:", Image(data=b"\x89PNG" * 3, format="png")]


@server.tool()
def fail(reason: str) -> str:
    raise ToolError(reason)


@server.tool()
def die() -> str:
    sys.stderr.write("I am dying\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
def hang() -> str:
    time.sleep(3600)
    return "late"


@server.tool()
def process() -> int:
    return os.getpid()


if __name__ == "__main__":
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    if mode == "broken":
        sys.exit("no configuration")
    server.run()
