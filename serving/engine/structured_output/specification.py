"""What a trial is about: messages between `trial` and `trial_process`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A fast Hugging Face tokenizer as llguidance reads it."""

    definition: str
    num_tokens: int
    eos_token: int | list[int] | None


@dataclass(frozen=True, slots=True)
class Specification:
    """What an answer must satisfy.

    Attributes:
        kind: json, json_object, regex, choice, grammar or structural_tag.
        text: of a choice, the JSON list.
        any_whitespace: whether JSON may have spaces and line ends between its parts.
    """

    kind: str
    text: str
    any_whitespace: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of a trial.

    Attributes:
        fault: why the specification is refused; None if it compiles within the limits.
        lark: the grammar in Lark's syntax, if it was in another: converting it takes long.
        was_stopped: it was ended from outside, so it says nothing about the specification.
    """

    fault: str | None
    lark: str | None = None
    was_stopped: bool = False
