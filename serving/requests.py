"""The requests of a view: one as a RequestView (a row), all of them as arrays (columns).

A view of thousands of requests is built in the scheduler's hot loop. So the engine updates the
columns in place, and policies compute with whole arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.length_sketch_columns import upper_tokens
from serving.slo import FutureWork, OnLate, Slo, SloKind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

KINDS = tuple(SloKind)
LATENCY, DEADLINE, COMPOUND, BEST_EFFORT = map(KINDS.index, SloKind)
"""Codes of the SLO kinds in `Requests.kind`."""

ON_LATE = tuple(OnLate)
CONTINUE_LATE, BEST_EFFORT_LATE, DROP_LATE = map(ON_LATE.index, OnLate)
"""Codes of the OnLate values in `Requests.on_late`."""


class RequestState(IntEnum):
    """A request's state in the engine."""

    WAITING = 0  # no slot: never scheduled, preempted, or a session that received new input
    RUNNING = 1  # holds KV cache and is computed in each step
    PAUSED = 2  # holds KV cache and a slot, and is left out of the steps


class RequestView(NamedTuple):
    """One request at the moment of the plan.

    Attributes:
        priority: set by the caller; lower is earlier, vLLM's convention.
        computed_tokens: tokens with keys and values in the KV cache.
        unscheduled_s: the last time it was computed; its arrival, if it never was.
        program_tokens: tokens computed so far for all calls of its program, ended ones included.
        user_tokens: tokens served so far to its user, weighted as in `fairness`.
        stage_missing: calls of its program's present stage that have not arrived yet.
        cached_tokens: prompt tokens found in the prefix cache at its arrival, or at its first
            step once that has been planned.
        prefix_hit_rate: recent share of prompt tokens that the prefix cache held, over the calls
            of its user after the first stage of a program.
        ended_tokens: input and output tokens of the calls of its program that have ended.
        length_ratio: recent ratio of true output length to the predicted median, for its user.
        future_ratio: the same for the tokens that a program decodes after a call (FutureWork).
        default_length: quantiles of its user's recent output lengths without a prediction, at
            LENGTH_LEVELS; 0 while there are none.
    """

    request_id: str
    arrival_s: float
    slo: Slo
    prompt_tokens: int
    max_tokens: int
    priority: int
    state: RequestState
    computed_tokens: int
    output_tokens: int
    unscheduled_s: float
    program_tokens: float = 0.0
    user_tokens: float = 0.0
    stage_missing: int = 0
    cached_tokens: int = 0
    prefix_hit_rate: float = 0.0
    ended_tokens: float = 0.0
    length_ratio: float = 1.0
    future_ratio: float = 1.0
    default_length: tuple[float, ...] = (0.0,) * len(LENGTH_LEVELS)

    @property
    def deadline_s(self) -> float:
        """When this request, or its stage, must end; infinity without a deadline."""
        if self.slo.deadline_s is None:
            return math.inf
        return self.arrival_s + self.slo.deadline_s

    @property
    def final_s(self) -> float:
        """When the whole program must end; `deadline_s` if the SLO has no final deadline."""
        if self.slo.final_s is None:
            return self.deadline_s
        return self.arrival_s + self.slo.final_s

    def remaining_tokens(self, level: float = 0.9) -> float:
        """Quantile of the remaining output tokens, at least 1.

        Conditioned on the tokens generated so far. Never more than `max_tokens` leaves, which is
        the bound without a sketch.

        Args:
            level: probability that the bound holds, in (0, 1).
        """
        limit = max(self.max_tokens - self.output_tokens, 1)
        length, _ = _first_part(self.slo)
        if length is None:
            return float(limit)
        bound = length.upper(level, generated=self.output_tokens)
        return min(bound - self.output_tokens, limit)


COLUMNS: dict[str, tuple[type | str, int]] = {
    "request_id": (object, 0),
    "slo": (object, 0),
    "arrival_s": (np.float64, 0),
    "kind": (np.int64, 0),
    "on_late": (np.int64, 0),
    "deadline_s": (np.float64, 0),
    "final_s": (np.float64, 0),
    "ttft_s": (np.float64, 0),
    "tbt_s": (np.float64, 0),
    "waiting_s": (np.float64, 0),
    "weight": (np.float64, 0),
    "program": (np.int64, 0),
    "stage": (np.int64, 0),
    "stage_calls": (np.int64, 0),
    "user": (np.int64, 0),
    "length": (np.float64, len(LENGTH_LEVELS)),
    "future": (np.float64, len(FutureWork._fields)),
    "prompt_tokens": (np.int64, 0),
    "max_tokens": (np.int64, 0),
    "priority": (np.int64, 0),
    "state": (np.int64, 0),
    "computed_tokens": (np.int64, 0),
    "output_tokens": (np.int64, 0),
    "unscheduled_s": (np.float64, 0),
    "program_tokens": (np.float64, 0),
    "user_tokens": (np.float64, 0),
    "stage_missing": (np.int64, 0),
    "cached_tokens": (np.int64, 0),
    "prefix_hit_rate": (np.float64, 0),
    "ended_tokens": (np.float64, 0),
    "length_ratio": (np.float64, 0),
    "future_ratio": (np.float64, 0),
    "default_length": (np.float64, len(LENGTH_LEVELS)),
}
"""Type of each column, and its width; 0 for a column with one number per row."""

MAX_VALUE = 1e12
"""SLO targets, weights and predictions are clamped to this, so that no sum overflows."""

MIN_VALUE = 1e-6
"""TTFT, TBT and weights are raised to this, so that no quotient overflows."""

_ONE_TOKEN = LengthSketch((1.0,) * len(LENGTH_LEVELS))
_NO_LENGTH = (math.nan,) * len(LENGTH_LEVELS)
_NO_FUTURE = (math.nan,) * len(FutureWork._fields)


class Requests(Sequence[RequestView]):
    """Requests in no particular order: columns by attribute, rows (RequestView) by index.

    Attributes, each of length n:
        request_id, slo: objects.
        arrival_s, deadline_s, final_s: absolute; infinity without a deadline. `final_s` equals
            `deadline_s` where the SLO has no final deadline.
        kind, on_late, state: codes (KINDS, ON_LATE, RequestState).
        ttft_s, tbt_s: targets of the latency kind.
        waiting_s: longest time unscheduled before the request is dropped; infinity without a limit.
        program, user: numbers; equal for the same program (by `program_name`) and the same user.
        length: (n, levels) quantiles of the output length; NaN without a prediction.
        default_length: (n, levels).
        future: (n, 6), FutureWork; NaN without a prediction, and MAX_VALUE where only its
            `serial_tokens` is unknown.
        others: as in RequestView and Slo.
    The arrays belong to the engine and are valid until its next step.
    """

    request_id: NDArray[np.object_]
    slo: NDArray[np.object_]
    arrival_s: Floats
    kind: Ints
    on_late: Ints
    deadline_s: Floats
    final_s: Floats
    ttft_s: Floats
    tbt_s: Floats
    waiting_s: Floats
    weight: Floats
    program: Ints
    stage: Ints
    stage_calls: Ints
    user: Ints
    length: Floats
    future: Floats
    prompt_tokens: Ints
    max_tokens: Ints
    priority: Ints
    state: Ints
    computed_tokens: Ints
    output_tokens: Ints
    unscheduled_s: Floats
    program_tokens: Floats
    user_tokens: Floats
    stage_missing: Ints
    cached_tokens: Ints
    prefix_hit_rate: Floats
    ended_tokens: Floats
    length_ratio: Floats
    future_ratio: Floats
    default_length: Floats

    __slots__ = tuple(COLUMNS)

    def __init__(self, columns: dict[str, NDArray[Any]]) -> None:
        for name in COLUMNS:
            setattr(self, name, columns[name])

    @classmethod
    def of(cls, rows: Iterable[RequestView]) -> Requests:
        """The same requests as columns."""
        rows = tuple(rows)
        programs, users = Numbering(), Numbering()
        columns = new_columns(len(rows))
        for index, row in enumerate(rows):
            slo = row.slo
            write_slo(columns, index, row.request_id, row.arrival_s, slo)
            columns["program"][index] = programs.of(program_name(row.request_id, slo))
            columns["user"][index] = users.of(slo.user)
            for name in _STATE_FIELDS:
                columns[name][index] = getattr(row, name)
        return cls(columns)

    def __len__(self) -> int:
        return len(self.request_id)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        fields = {name: getattr(self, name)[index].tolist() for name in _STATE_FIELDS}
        fields["default_length"] = tuple(fields["default_length"])
        fields["state"] = RequestState(fields["state"])
        return RequestView(
            self.request_id[index], float(self.arrival_s[index]), self.slo[index], **fields
        )

    def __iter__(self) -> Iterator[RequestView]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"Requests.of({list(self)})"

    def take(self, indices: Ints) -> Requests:
        """The requests at these indices, in this order.

        A column is copied at its first use, so the result is valid while neither these requests
        nor `indices` change.
        """
        return _Subset(self, indices)

    def ids(self, indices: Ints) -> list[str]:
        """The request ids at these indices, in this order."""
        ids: list[str] = self.request_id[indices].tolist()
        return ids

    def with_columns(self, **changed: NDArray[Any]) -> Requests:
        """The same requests with these columns replaced."""
        return Requests({name: getattr(self, name) for name in COLUMNS} | changed)

    def remaining_tokens(self, level: float = 0.9) -> Floats:
        """RequestView.remaining_tokens of every request: (n,)."""
        limit = np.maximum(self.max_tokens - self.output_tokens, 1).astype(np.float64)
        bound = upper_tokens(self.length, level, generated=self.output_tokens)
        # fmin ignores NaN: the limit is the bound of a request without a prediction.
        remaining: Floats = np.fmin(bound - self.output_tokens, limit)
        return remaining


class _Subset(Requests):
    """Some requests of another Requests. Columns are copied lazily: most are never used."""

    __slots__ = ("_indices", "_whole")

    def __init__(self, whole: Requests, indices: Ints) -> None:
        self._whole, self._indices = whole, indices

    def __getattr__(self, name: str) -> NDArray[Any]:  # called only while the column is not set
        if name not in COLUMNS:
            raise AttributeError(name)
        column: NDArray[Any] = getattr(self._whole, name).take(self._indices, axis=0)
        setattr(self, name, column)
        return column

    def __len__(self) -> int:
        return len(self._indices)

    def ids(self, indices: Ints) -> list[str]:
        return self._whole.ids(self._indices[indices])


class Numbering:
    """Numbers names from 0 in the order of their first lookup."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, name: str) -> int:
        """This name's number."""
        return self._numbers.setdefault(name, len(self._numbers))


_STATE_FIELDS = RequestView._fields[3:]  # all but request_id, arrival_s and slo
_CLAMPED_FIELDS = ("ttft_s", "tbt_s", "weight", "stage_calls")


def program_name(request_id: str, slo: Slo) -> str:
    """A key that is unique to a request's program, whatever names callers give.

    Programs of two users differ even if they have the same name. A request without a program name
    is its own program, and so is every latency stream: its SLO holds token by token.
    """
    if not slo.program or slo.kind is SloKind.LATENCY:
        return f"alone {request_id}"
    return f"named {(slo.user, slo.program)}"


def new_columns(rows: int) -> dict[str, NDArray[Any]]:
    """Columns of this many rows, all zero."""
    return {
        name: np.zeros((rows, width) if width else rows, dtype=kind)
        for name, (kind, width) in COLUMNS.items()
    }


def write_slo(
    columns: dict[str, NDArray[Any]], index: int, request_id: str, arrival_s: float, slo: Slo
) -> None:
    """Fill a row's columns that follow from the SLO, except the numbers of program and user."""
    deadline_s = math.inf if slo.deadline_s is None else arrival_s + min(slo.deadline_s, MAX_VALUE)
    final_s = deadline_s if slo.final_s is None else arrival_s + min(slo.final_s, MAX_VALUE)
    waiting_s = math.inf if slo.waiting_s is None else min(slo.waiting_s, MAX_VALUE)
    length, future = _first_part(slo)
    columns["request_id"][index] = request_id
    columns["slo"][index] = slo
    columns["arrival_s"][index] = arrival_s
    columns["kind"][index] = KINDS.index(slo.kind)
    columns["on_late"][index] = ON_LATE.index(slo.on_late)
    columns["deadline_s"][index] = deadline_s
    columns["final_s"][index] = final_s
    columns["waiting_s"][index] = waiting_s
    columns["length"][index] = _clamped(
        None if length is None else length.tokens, default=_NO_LENGTH
    )
    columns["future"][index] = _clamped(future, default=_NO_FUTURE)
    for name in _CLAMPED_FIELDS:
        columns[name][index] = min(max(getattr(slo, name), MIN_VALUE), MAX_VALUE)
    columns["stage"][index] = min(slo.stage, MAX_VALUE)


def begin_second_part(
    columns: dict[str, NDArray[Any]],
    index: int,
    slo: Slo,
    *,
    generated: int,
    length_ratio: float = 1.0,
) -> None:
    """Make a row the stream that begins with its next token (`Slo.then_tbt_s`).

    The row's arrival becomes the time from which TTFT and TBT give that token its due time.

    Args:
        generated: output tokens so far.
        length_ratio: by which policies correct predicted lengths; it is not for these tokens.
    """
    assert slo.then_tbt_s is not None, "its answer has a second part"
    tbt_s = min(max(slo.then_tbt_s, MIN_VALUE), MAX_VALUE)
    due_s = columns["final_s"][index] + (generated * tbt_s if slo.then_token is None else 0.0)
    if slo.kind is SloKind.LATENCY:
        first_s = columns["arrival_s"][index] + columns["ttft_s"][index]
        due_s = first_s + generated * columns["tbt_s"][index]
    columns["kind"][index] = LATENCY
    columns["arrival_s"][index] = due_s - generated * tbt_s - columns["ttft_s"][index]
    columns["tbt_s"][index] = tbt_s
    columns["deadline_s"][index] = columns["final_s"][index] = math.inf
    length: Sequence[float] | None = None
    if slo.then_token is None and slo.length is not None:
        length = slo.length.tokens
    elif slo.then_length is not None:
        length = [generated / length_ratio + tokens for tokens in slo.then_length.tokens]
    columns["length"][index] = _clamped(length, default=_NO_LENGTH)
    columns["future"][index] = _NO_FUTURE


def _first_part(slo: Slo) -> tuple[LengthSketch | None, FutureWork | None]:
    """The predicted length and future of a request at its arrival.

    What follows a deadline within an answer is work of the future. Two streams are counted as one.
    """
    length, then = slo.length, slo.then_length
    if slo.then_tbt_s is not None and slo.then_token is None:
        length, then = _ONE_TOKEN, length
    if length is None or then is None:
        return length, slo.future
    if slo.kind is SloKind.LATENCY:
        both = zip(length.tokens, then.tokens, strict=True)
        return LengthSketch(tuple(map(sum, both))), slo.future
    future = slo.future or FutureWork(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return length, future._replace(decode_tokens=future.decode_tokens + then.upper(0.5))


def _clamped(values: Sequence[float] | None, *, default: tuple[float, ...]) -> Sequence[float]:
    return default if values is None else [min(value, MAX_VALUE) for value in values]
