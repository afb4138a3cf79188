"""Results of MCP tools as texts; images, sounds and files are named, since models get texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp.types import CallToolResult


def text_of(result: CallToolResult) -> str:
    """A result as a text: its parts, or its structured content if it has no parts."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(_part(part) for part in result.content)


def _part(part: Any) -> str:
    match part.type:
        case "text":
            return str(part.text)
        case "image" | "audio":
            return f"[{part.type}: {part.mime_type}, {len(part.data) * 3 // 4} bytes]"
        case "resource_link":
            return f"[resource {part.name}: {part.uri}]"
        case "resource":
            text = getattr(part.resource, "text", None)
            return str(text) if text is not None else f"[resource: {part.resource.uri}]"
    return f"[{part.type}]"
