"""The promise of a request as fields of its JSON body, beside OpenAI's: another spelling of tags.

`deadline`, `target_ttft`, `target_tbt` and `waiting_time`, in seconds. Source: Wu (2025), chapter 5
(the API).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from serving.errors import InvalidSlo
from serving.slo import SloKind, from_tags

TAG_OF_FIELD: Mapping[str, str] = MappingProxyType(
    {
        "deadline": "slo_deadline_s",
        "target_ttft": "slo_ttft_s",
        "target_tbt": "slo_tbt_s",
        "waiting_time": "slo_waiting_s",
    }
)

_STREAM_FIELDS = ("target_ttft", "target_tbt")


def with_tags(body: bytes) -> bytes:
    """The body with its fields as tags in `vllm_xargs`; unchanged if it has none.

    A target for TTFT or TBT implies the latency kind, a deadline its own (`serving.slo.from_tags`).
    A body that is not a JSON object, or is nested too deeply, is left for vLLM to reject.

    Raises:
        InvalidSlo: a value is invalid, or said twice; it names the field.
    """
    names = (f'"{name}"'.encode() for name in TAG_OF_FIELD)
    # Escapes, and the NULs of UTF-16 and UTF-32, could spell a name in another way.
    if not any(text in body for text in (*names, b"\\u", b"\x00")):
        return body
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(document, dict) or not document.keys() & TAG_OF_FIELD.keys():
        return body
    given = {name: document.pop(name) for name in TAG_OF_FIELD if name in document}
    given = {name: value for name, value in given.items() if value is not None}
    if given:
        document["vllm_xargs"] = _merged(document.get("vllm_xargs") or {}, given)
    return json.dumps(document).encode()


def _merged(tags: object, fields: Mapping[str, object]) -> dict[str, Any]:
    if not isinstance(tags, dict):
        raise InvalidSlo("vllm_xargs", tags, "must be an object")
    for name, value in fields.items():
        if TAG_OF_FIELD[name] in tags:
            raise InvalidSlo(name, value, f"is given twice: also as {TAG_OF_FIELD[name]}")
    merged = tags | {TAG_OF_FIELD[name]: value for name, value in fields.items()}
    streams = [name for name in _STREAM_FIELDS if name in fields]
    if streams and "slo_kind" not in tags:
        if "slo_deadline_s" in merged:
            reason = "is a target of a stream, which has no deadline; say slo_kind to have both"
            raise InvalidSlo(streams[0], fields[streams[0]], reason)
        merged["slo_kind"] = SloKind.LATENCY.value
    try:
        from_tags(merged)
    except InvalidSlo as error:
        tag, value, reason = error.args
        names = {TAG_OF_FIELD[name]: name for name in fields}
        raise InvalidSlo(names.get(tag, tag), value, reason) from None
    return merged
