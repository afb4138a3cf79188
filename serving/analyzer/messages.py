"""What a server and its analyzer, a process beside it, tell each other: one JSON document a line.

The server reports each call's arrival and end; the analyzer answers an arrival with tags, and says
which calls it has recorded. Messages hold no text of a prompt, only hashes and counts.

Source: Wu (2025), chapter 5 (control plane).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from serving.slo import TagValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A call that arrives.

    Attributes:
        call: its id.
        at_s: when, on the machine's monotonic clock.
        user: for fairness, or the one that the request names; "" if unknown.
        end_user: the `user` of the request's body.
        shape: what the calls of one step have in common, hashed.
        links: a chain of hashes over the pieces of its prompt, each of all pieces so far; the last
            one is that of the whole prompt.
        previous: the id of the answer that it continues (`previous_response_id`); "" without one.
        program: the name that its client gives its program; "" without one.
        program_deadline_s: deadline of the program, from its first call; None without one.
        final_s: deadline of the program from now, by the call's own tags; None without one.
        prompt_tokens: estimated from the prompt's bytes.
        words: `serving.analyzer.words.count_words` of the prompt, hexadecimal.
    """

    kind: Literal["arrival"] = "arrival"
    call: str
    at_s: float
    model: str
    user: str = ""
    end_user: str = ""
    shape: str = ""
    links: tuple[str, ...] = ()
    previous: str = ""
    program: str = ""
    program_deadline_s: float | None = None
    final_s: float | None = None
    prompt_tokens: int = 0
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    structured: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A call that ended.

    Attributes:
        answer: the engine's id of its answer, which begins with the one that the client saw.
        is_complete: the answer is whole: it ended by itself or at its limit.
    """

    kind: Literal["ended"] = "ended"
    call: str
    at_s: float
    answer: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    is_complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The tags that a call's own ones may be completed with; empty if nothing is known."""

    kind: Literal["advice"] = "advice"
    call: str
    tags: dict[str, TagValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Calls that are in the analyzer's store, so that a new analyzer knows them by it."""

    kind: Literal["recorded"] = "recorded"
    calls: tuple[str, ...]


Message = Arrival | Ended | Advice | Recorded

_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


def encode(message: Message) -> bytes:
    """The message as a line."""
    return _ADAPTER.dump_json(message) + b"\n"


def decode(line: bytes) -> Message:
    """The message of a line; raises ValueError for anything else."""
    try:
        return _ADAPTER.validate_json(line)
    except ValidationError as error:
        raise ValueError(f"no message: {line[:80]!r}") from error
