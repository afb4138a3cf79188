"""The service level objective (SLO) of a request, and its wire form.

On the wire an SLO is a flat mapping of ``slo_*`` tags (vLLM's ``SamplingParams.extra_args``; over
HTTP ``vllm_xargs``). Times are seconds from the request's arrival at the engine, so the clocks of
two machines are never compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple

from serving.errors import InvalidSlo
from serving.length_sketch import LENGTH_LEVELS, LengthSketch

TAG_PREFIX = "slo_"

TagValue = str | int | float | list[float]

MAX_NAME_CHARACTERS = 256
"""Limit on the length of a program or user name, because the engine keeps names in memory."""


class SloKind(StrEnum):
    """Which tokens count as goodput. Source: Wu (2025), chapter 3."""

    LATENCY = "latency"  # token i counts if delivered by TTFT + i * TBT
    DEADLINE = "deadline"  # all tokens count if the request ends by its deadline
    COMPOUND = "compound"  # all tokens of all calls count if the last ends by the run's deadline
    BEST_EFFORT = "best_effort"  # no target, but protected from starvation


class OnLate(StrEnum):
    """What the scheduler does with a request once its deadline can no longer be met."""

    CONTINUE = "continue"  # a late answer is useful: ranked behind all requests that are not late
    BEST_EFFORT = "best_effort"  # ranked last: runs in otherwise unused slots
    DROP = "drop"  # ended; the caller gets RequestDropped


class FutureWork(NamedTuple):
    """The predicted work of a run after this stage, learned from past runs.

    Attributes:
        calls, prefill_tokens, decode_tokens: sums over all later stages.
        critical_s: seconds of later stages on the critical path in past runs.
        tool_s: the part of critical_s that tools took.
        serial_tokens: decode steps on the critical path: the sum, over later stages, of the
            longest answer of each; infinity where that is unknown.
    """

    calls: float
    prefill_tokens: float
    decode_tokens: float
    critical_s: float
    tool_s: float
    serial_tokens: float = math.inf


def _check_name(key: str, name: str) -> None:
    if len(name) > MAX_NAME_CHARACTERS:
        reason = f"has {len(name)} characters, the limit is {MAX_NAME_CHARACTERS}"
        raise InvalidSlo(key, f"{name[:32]}...", reason)
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise InvalidSlo(key, name, "must be text that UTF-8 can encode")


# Defaults of the thesis' API: Wu (2025), chapter 5.
DEFAULT_TTFT_S = 5.0
DEFAULT_TBT_S = 0.2
DEFAULT_LATENCY_WAITING_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """One request's SLO. All times in seconds from its arrival at the engine.

    Attributes:
        deadline_s: deadline of this request, or of its stage for a compound request.
        ttft_s, tbt_s: targets of the latency kind.
        waiting_s: longest time unscheduled before the request is dropped; None: never dropped.
        program, stage: of a compound request. The program is a run, or a part of a run that has
            an earlier deadline.
        final_s: deadline of its program.
        length: predicted quantiles of the output length; None without a prediction.
        stage_calls: LLM calls expected in this stage; the slowest one determines its end.
        future: predicted work of the program after this stage; None without a prediction.
        weight: factor on the request's goodput.
        user: key for fairness.
        then_tbt_s: TBT of the second part of the answer, which is a stream. Its first token is due
            by the deadline (`final_s`, or `deadline_s` without one), or of the latency kind at its
            place in the first stream. None: the answer has one part.
        then_token: id of the token that ends the first part, such as the end of thinking. None:
            with then_tbt_s, all of the answer is the second part.
        then_length: with then_token, predicted quantiles of the second part's length; `length` is
            of the first part then.
        dummy: it only waits for its turn: when it could begin it ends, before anything is computed
            (Wu (2025), section 4.3).
    Raises:
        InvalidSlo: a value is out of range, or the kind lacks what it needs.
    """

    kind: SloKind = SloKind.BEST_EFFORT
    deadline_s: float | None = None
    ttft_s: float = DEFAULT_TTFT_S
    tbt_s: float = DEFAULT_TBT_S
    waiting_s: float | None = None
    on_late: OnLate = OnLate.BEST_EFFORT
    program: str = ""
    stage: int = 0
    final_s: float | None = None
    length: LengthSketch | None = None
    stage_calls: int = 1
    future: FutureWork | None = None
    weight: float = 1.0
    user: str = ""
    then_token: int | None = None
    then_tbt_s: float | None = None
    then_length: LengthSketch | None = None
    dummy: bool = False

    def __post_init__(self) -> None:
        self._check_deadlines()
        self._check_second_part()
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InvalidSlo(TAG_PREFIX + name, value, "must be a finite number above 0")
        if (self.deadline_s or 0.0) > (self.final_s or math.inf):
            raise InvalidSlo(
                "slo_deadline_s", self.deadline_s, f"later than slo_final_s ({self.final_s})"
            )
        for name in ("program", "user"):
            _check_name(TAG_PREFIX + name, getattr(self, name))
        if self.stage < 0:
            raise InvalidSlo("slo_stage", self.stage, "must not be negative")
        if self.stage_calls < 1:
            raise InvalidSlo("slo_stage_calls", self.stage_calls, "must be at least 1")
        if self.waiting_s is None and self.kind is SloKind.LATENCY:
            object.__setattr__(self, "waiting_s", DEFAULT_LATENCY_WAITING_S)

    def _check_deadlines(self) -> None:
        if self.kind in (SloKind.DEADLINE, SloKind.COMPOUND):
            if self.deadline_s is None:
                raise InvalidSlo("slo_deadline_s", None, f"kind {self.kind} needs a deadline")
            return
        for name in ("deadline_s", "final_s"):
            if (value := getattr(self, name)) is not None:
                problem = f"kind {self.kind} has none; set slo_kind to deadline or compound"
                raise InvalidSlo(TAG_PREFIX + name, value, problem)

    def _check_second_part(self) -> None:
        parts = {
            "slo_then_token": self.then_token,
            "slo_then_length_q": self.then_length,
            "slo_then_tbt_s": self.then_tbt_s,
        }
        tag, value = next((part for part in parts.items() if part[1] is not None), ("", None))
        if not tag:
            return
        if (self.then_token or 0) < 0:
            raise InvalidSlo(tag, value, "must not be negative")
        if self.kind is SloKind.BEST_EFFORT:
            raise InvalidSlo(tag, value, f"kind {self.kind} has no second part")
        if self.then_tbt_s is None:
            raise InvalidSlo(tag, value, "a second part needs slo_then_tbt_s")
        if self.then_token is None and tag == "slo_then_length_q":
            raise InvalidSlo(tag, value, "needs slo_then_token; without it use slo_length_q")
        if self.then_token is None and self.kind is SloKind.LATENCY:
            raise InvalidSlo(tag, value, f"kind {self.kind} needs slo_then_token too")


_POSITIVE = ("deadline_s", "ttft_s", "tbt_s", "waiting_s", "final_s", "weight", "then_tbt_s")

BEST_EFFORT = Slo()


def to_tags(slo: Slo) -> dict[str, TagValue]:
    """The wire form of an SLO: flat, JSON-safe, without fields that have their default value."""
    tags: dict[str, TagValue] = {}
    for field in fields(Slo):
        value = getattr(slo, field.name)
        if value == field.default:
            continue
        if isinstance(value, LengthSketch):
            tags[f"{TAG_PREFIX}{field.name}_q"] = [float(tokens) for tokens in value.tokens]
        elif isinstance(value, FutureWork):
            parts = value[:-1] if value.serial_tokens == math.inf else value
            tags["slo_future"] = [float(part) for part in parts]
        elif isinstance(value, StrEnum):
            tags[TAG_PREFIX + field.name] = value.value
        else:
            tags[TAG_PREFIX + field.name] = value
    return tags


def from_tags(tags: Mapping[str, object] | None) -> Slo:
    """Parse and validate the wire form; keys without the ``slo_`` prefix are ignored.

    A deadline without a kind implies it: compound with a program, else deadline.

    Raises:
        InvalidSlo: an unknown ``slo_*`` key, a wrong type, or a value out of range.
    """
    values: dict[str, object] = {}
    for key, value in (tags or {}).items():
        if not str(key).startswith(TAG_PREFIX):  # foreign keys may be of any type
            continue
        try:
            name, parse = _TAGS[key]
        except KeyError:
            raise InvalidSlo(key, value, f"unknown tag; known: {', '.join(_TAGS)}") from None
        values[name] = parse(key, value)
    if "deadline_s" in values:
        values.setdefault("kind", SloKind.COMPOUND if "program" in values else SloKind.DEADLINE)
    return Slo(**values) if values else BEST_EFFORT  # type: ignore[arg-type]


PROMISES = ("slo_deadline_s", "slo_final_s", "slo_ttft_s", "slo_waiting_s")
"""The tags that count seconds from the arrival; `slo_tbt_s` counts from token to token."""

LEAST_S = 0.001
"""What is left of a promise whose time has passed. The engine takes only values above 0, and by
`slo_on_late` it decides what becomes of a late request; none answers within a millisecond."""


def remaining(tags: Mapping[str, Any], slo: Slo, *, spent_s: float) -> dict[str, Any]:
    """The tags after some seconds before the engine; those of other kinds of values are unchanged.

    The default promises of a latency request are promises too, so they are written down.

    Args:
        slo: what the tags mean.
        spent_s: seconds since the arrival.
    """
    promised = dict(tags)
    if slo.kind is SloKind.LATENCY:
        promised |= {"slo_ttft_s": slo.ttft_s, "slo_waiting_s": slo.waiting_s}
    for name in PROMISES:
        if name in promised:
            promised[name] = max(promised[name] - spent_s, LEAST_S)
    return promised


def patience_s(slo: Slo) -> float:
    """Seconds from the arrival after which a request without any service is to be dropped."""
    due_s = (slo.final_s or slo.deadline_s) if slo.on_late is OnLate.DROP else None
    return min(slo.waiting_s or math.inf, due_s or math.inf)


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSlo(key, value, "must be a number")
    try:
        return float(value)
    except OverflowError:  # integers in JSON are unbounded
        raise InvalidSlo(key, "a huge integer", "must be a finite number") from None


def _whole(key: str, value: object) -> int:
    number = _number(key, value)
    if not number.is_integer():
        raise InvalidSlo(key, value, "must be a whole number")
    return int(number)


def _flag(key: str, value: object) -> bool:
    if value not in (True, False):  # vLLM's server makes a number of it
        raise InvalidSlo(key, value, "must be true or false")
    return bool(value)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidSlo(key, value, "must be a string")
    return value


def _numbers(key: str, value: object, *counts: int) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or len(value) not in counts:
        raise InvalidSlo(key, value, f"must be a list of {' or '.join(map(str, counts))} numbers")
    numbers = tuple(_number(key, item) for item in value)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise InvalidSlo(key, value, "must hold finite numbers of at least 0")
    return numbers


def _sketch(key: str, value: object) -> LengthSketch:
    numbers = _numbers(key, value, len(LENGTH_LEVELS))
    try:
        return LengthSketch(numbers)
    except ValueError as error:
        raise InvalidSlo(key, value, str(error)) from None


def _future(key: str, value: object) -> FutureWork:
    num_fields = len(FutureWork._fields)
    return FutureWork(*_numbers(key, value, num_fields - 1, num_fields))  # serial_tokens: optional


def _one_of(choices: type[StrEnum]) -> Callable[[str, object], StrEnum]:
    def parse(key: str, value: object) -> StrEnum:
        try:
            return choices(_text(key, value))
        except ValueError:
            raise InvalidSlo(key, value, f"must be one of {', '.join(choices)}") from None

    return parse


_TAGS: dict[str, tuple[str, Callable[[str, object], object]]] = {
    "slo_kind": ("kind", _one_of(SloKind)),
    "slo_deadline_s": ("deadline_s", _number),
    "slo_ttft_s": ("ttft_s", _number),
    "slo_tbt_s": ("tbt_s", _number),
    "slo_waiting_s": ("waiting_s", _number),
    "slo_on_late": ("on_late", _one_of(OnLate)),
    "slo_program": ("program", _text),
    "slo_stage": ("stage", _whole),
    "slo_final_s": ("final_s", _number),
    "slo_length_q": ("length", _sketch),
    "slo_stage_calls": ("stage_calls", _whole),
    "slo_future": ("future", _future),
    "slo_weight": ("weight", _number),
    "slo_user": ("user", _text),
    "slo_then_token": ("then_token", _whole),
    "slo_then_tbt_s": ("then_tbt_s", _number),
    "slo_then_length_q": ("then_length", _sketch),
    "slo_dummy": ("dummy", _flag),
}
