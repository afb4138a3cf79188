"""JSON schemas from outside: nothing that they name is opened, and none ends a check otherwise."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from orchestrator.durability.answer_schema import why_not
from orchestrator.durability.json_schemas import checked_schema, fault_of
from orchestrator.sdk.schemas import AnswerForm
from orchestrator.tools.functions import ArgumentsInvalid
from orchestrator.tools.mcp_tools import McpTool
from serving.errors import InvalidRequest
from serving.generation import Completion, ToolSpec, Usage


@contextmanager
def counting_server() -> Iterator[tuple[str, list[str]]]:
    """A URL of a JSON schema, and the requests for it."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "string"}')

        def log_message(self, *_: Any) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/schema", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def of_a(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


def mcp_tool(schema: dict[str, Any]) -> McpTool:
    connection: Any = None
    return McpTool(ToolSpec("look", "", schema), "pure", connection, "look")


def test_a_schema_with_a_url_makes_no_request_wherever_it_is_used() -> None:
    completion = Completion("r", '{"a": "x"}', "stop", Usage(1, 1), 0.0, 0.0)
    with counting_server() as (url, asked):
        schema = of_a({"$ref": url})
        with pytest.raises(ArgumentsInvalid, match=r"refers to what it does not have: http://127"):
            mcp_tool(schema).check({"a": "x"})
        with pytest.raises(InvalidRequest, match="refers to what it does not have"):
            AnswerForm.of(schema).value_in(completion)
        assert why_not(schema, b'{"a": "x"}') is None
        assert asked == []


@pytest.mark.parametrize("schema", [{"$ref": "file:///etc/hostname"}, {"$ref": "#/$defs/none"}])
def test_a_reference_that_leads_nowhere_makes_arguments_invalid(schema: dict[str, Any]) -> None:
    tool = mcp_tool(of_a(schema))
    tool.check({})
    with pytest.raises(ArgumentsInvalid, match="does not have"):
        tool.check({"a": "x"})


def test_a_schema_that_refers_to_itself_without_end_makes_arguments_invalid() -> None:
    with pytest.raises(ArgumentsInvalid, match="too deep"):
        mcp_tool({"$ref": "#"}).check({})


@pytest.mark.parametrize(
    "reference", ["#/$defs/text", "https://json-schema.org/draft/2020-12/schema"]
)
def test_references_within_a_schema_and_to_the_drafts_are_followed(reference: str) -> None:
    validator = checked_schema(of_a({"$ref": reference}) | {"$defs": {"text": {"type": "object"}}})
    assert fault_of(validator, {"a": {}}) is None
    assert (fault_of(validator, {"a": 3}) or "").startswith("$.a: 3 is not of type")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "text"}, "'text' is not valid"),
        ({"$schema": 3}, r"\$schema is 3"),
        ({"$schema": "http://[bad"}, "Invalid IPv6"),
        ({"$ref": 3}, "3 is not of type 'string'"),
    ],
)
def test_a_schema_that_is_not_valid_is_a_value_error(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checked_schema(schema)


def test_the_draft_that_a_schema_names_is_the_one_that_counts() -> None:
    old = {"$schema": "http://json-schema.org/draft-04/schema#"}
    limit = {"minimum": 3, "exclusiveMinimum": True}
    assert fault_of(checked_schema(old | limit), 3) is not None
    unknown = {"$schema": "http://unknown/schema", "minimum": 3}
    assert fault_of(checked_schema(unknown), 3) is None
