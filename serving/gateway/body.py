"""A request's body, parsed once: what a router must know of it, and how its tags are replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.errors import InvalidSlo
from serving.gateway.json_members import Member, members_of
from serving.request_fields import with_tags
from serving.slo import BEST_EFFORT, TAG_PREFIX, Slo, from_tags

TAGS = "vllm_xargs"

PROMPTS = ("messages", "prompt", "input")
"""The members that hold a prompt: of chats, of completions, of responses and embeddings."""

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""The members that limit the answer's length; the first one that is there counts."""

_DATA_URL = re.compile(r'"data:[^"]*"')


@dataclass(frozen=True, slots=True)
class Body:
    """What a router must know of a request.

    Attributes:
        content: the bytes as they arrived.
        model: the model that it names; "" for none.
        is_stream: whether it asks for server-sent events.
        slo: what its tags mean; best effort if they are missing, or malformed: the replica that
            gets the request refuses it then.
        tags: its extra arguments if there are valid SLO tags in them, else empty.
        prompt: the JSON text of its prompt.
        max_tokens: the limit on the answer's length; None without one.
    """

    content: bytes
    model: str = ""
    is_stream: bool = False
    slo: Slo = BEST_EFFORT
    tags: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = ""
    max_tokens: int | None = None
    _text: str = ""
    _encoding: str = ""
    _tags_range: tuple[int, int] = (0, 0)

    @property
    def prompt_characters(self) -> int:
        """The length of the prompt's JSON text without the data of images and other files."""
        if '"data:' not in self.prompt:
            return len(self.prompt)
        return len(_DATA_URL.sub("", self.prompt))

    def with_tags(self, tags: Mapping[str, Any]) -> bytes:
        """The bytes with other extra arguments; everything else is unchanged."""
        assert self.tags, "there are no tags to replace"
        start, end = self._tags_range
        parts = (self._text[:start], json.dumps(tags), self._text[end:])
        return "".join(parts).encode(self._encoding, "surrogatepass")


def _with_fields_as_tags(content: bytes) -> bytes:
    """The body with `deadline` and its like as tags; an invalid one is left for the replica."""
    try:
        return with_tags(content)
    except InvalidSlo:
        return content


def parse_body(content: bytes, *, has_tags: bool) -> Body:
    """Parse a body; what is not a JSON object has no properties: a replica refuses it.

    Args:
        has_tags: whether requests to this path may carry SLO tags.
    """
    if has_tags:
        content = _with_fields_as_tags(content)
    encoding = json.detect_encoding(content)
    try:
        text = content.decode(encoding, "surrogatepass")
        members = members_of(text)
    except (ValueError, RecursionError):
        return Body(content)
    tags, slo = _slo(members) if has_tags else ({}, BEST_EFFORT)
    prompt = next((members[name] for name in PROMPTS if name in members), None)
    model = members["model"].value if "model" in members else ""
    return Body(
        content,
        model=model if isinstance(model, str) else "",
        is_stream="stream" in members and members["stream"].value is True,
        slo=slo,
        tags=tags,
        prompt="" if prompt is None else text[prompt.start : prompt.end],
        max_tokens=_limit(members),
        _text=text if tags else "",
        _encoding="utf-8" if encoding == "utf-8-sig" else encoding,
        _tags_range=(members[TAGS].start, members[TAGS].end) if tags else (0, 0),
    )


def _slo(members: Mapping[str, Member]) -> tuple[Mapping[str, Any], Slo]:
    """The extra arguments and what their SLO tags mean; none if there are no valid SLO tags."""
    tags = members[TAGS].value if TAGS in members else None
    if not isinstance(tags, dict) or not any(key.startswith(TAG_PREFIX) for key in tags):
        return {}, BEST_EFFORT
    try:
        return tags, from_tags(tags)
    except InvalidSlo:
        return {}, BEST_EFFORT


def _limit(members: Mapping[str, Member]) -> int | None:
    limits = (members[name].value for name in LIMITS if name in members)
    return next((limit for limit in limits if type(limit) is int and limit > 0), None)
