"""What a policy sees of the requests: one of them as a row, all of them as columns.

Columns, because a view of thousands of requests is built in the scheduler's hot loop: an engine
keeps them up to date in place, and a policy computes with whole arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.length_sketch import LENGTH_LEVELS, upper_tokens
from serving.slo import FutureWork, OnLate, Slo, SloKind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

KINDS = tuple(SloKind)
LATENCY, DEADLINE, COMPOUND, BEST_EFFORT = map(KINDS.index, SloKind)
"""The codes of the kinds in `Requests.kind`."""

ON_LATE = tuple(OnLate)
CONTINUE_LATE, BEST_EFFORT_LATE, DROP_LATE = map(ON_LATE.index, OnLate)
"""The codes in `Requests.on_late`."""


class RequestState(IntEnum):
    """Where a request stands in the engine."""

    WAITING = 0  # has no slot: never scheduled, preempted, or a session whose next input came
    RUNNING = 1  # holds KV cache and is computed in each step
    PAUSED = 2  # holds KV cache and a slot, and is left out of the steps


class RequestView(NamedTuple):
    """One request as it stands when the plan is made.

    Attributes:
        priority: as its caller asked; lower is earlier, vLLM's convention.
        computed_tokens: tokens whose keys and values are in the cache.
        unscheduled_s: since when it has not been computed; its arrival, if it never was.
        program_tokens: computed so far for all calls of its program, ended ones too.
        user_tokens: served so far to its user, weighted as in `fairness`.
        stage_missing: calls of its program's present stage that are still to arrive.
        cached_tokens: of its prompt, what the prefix cache held when it arrived, or when it began.
        cached_share: of the prompts of its user's later calls, what the prefix cache lately held.
        ended_tokens: input and output of its program's calls that came to their end.
        length_ratio: what true output lengths of its user were lately, in units of the foretold
            medians.
        future_ratio: the same of what its user's programs were foretold to decode after a call.
        usual_length: quantiles of its user's latest answers of which no length was foretold; 0
            while there are none.
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
        """When this request, or its stage, must end; infinity where nothing is promised."""
        if self.slo.deadline_s is None:
            return math.inf
        return self.arrival_s + self.slo.deadline_s

    @property
    def final_s(self) -> float:
        """When the whole program must end; the request's own deadline if it is no program."""
        if self.slo.final_s is None:
            return self.deadline_s
        return self.arrival_s + self.slo.final_s

    def remaining_tokens(self, level: float = 0.9) -> float:
        """Upper bound on the output tokens still to come, at least 1.

        Conditioned on what has been generated; without a sketch, what max_tokens leaves.
        """
        limit = max(self.max_tokens - self.output_tokens, 1)
        if self.slo.length is None:
            return float(limit)
        bound = self.slo.length.upper(level, generated=self.output_tokens)
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
"""Each column's type, and its width where a row has more than one number of it."""

MOST = 1e12
"""Larger promises, weights and predictions are taken as this, so that no sum ever overflows."""

LEAST = 1e-6
"""Smaller promises and weights are taken as this, so that no quotient does."""

_NO_LENGTH = (math.nan,) * len(LENGTH_LEVELS)
_NO_FUTURE = (math.nan,) * len(FutureWork._fields)


class Requests(Sequence[RequestView]):
    """Requests in no particular order: as columns by attribute, and as rows by index.

    Attributes, each of length n:
        request_id, slo: objects.
        arrival_s, deadline_s, final_s: absolute; infinity where nothing is promised. `final_s` is
            the request's own deadline where it is no program.
        kind, on_late, state: codes (KINDS, ON_LATE, RequestState).
        ttft_s, tbt_s: of the latency kind.
        waiting_s: patience; infinity where it is without end.
        program, user: equal numbers for equal ones, as `program_name` tells programs apart.
        length: (n, levels) quantiles of the output length; NaN where nothing is known.
        usual_length: (n, levels).
        future: (n, 6), as FutureWork; NaN where nothing is known, MOST where a chain is not.
        others: as in RequestView and Slo.
    Arrays belong to the engine that showed them and are true until its next step.
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
        """The columns of some rows."""
        rows = tuple(rows)
        programs, users = Numbering(), Numbering()
        columns = new_columns(len(rows))
        for place, row in enumerate(rows):
            slo = row.slo
            write_promise(columns, place, row.request_id, row.arrival_s, slo)
            columns["program"][place] = programs.of(program_name(row.request_id, slo))
            columns["user"][place] = users.of(slo.user)
            for name in _LIVE:
                columns[name][place] = getattr(row, name)
        return cls(columns)

    def __len__(self) -> int:
        return len(self.request_id)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        live = {name: getattr(self, name)[place].tolist() for name in _LIVE}
        live["default_length"] = tuple(live["default_length"])
        live["state"] = RequestState(live["state"])
        return RequestView(
            self.request_id[place], float(self.arrival_s[place]), self.slo[place], **live
        )

    def __iter__(self) -> Iterator[RequestView]:
        return (self[place] for place in range(len(self)))

    def __repr__(self) -> str:
        return f"Requests.of({list(self)})"

    def take(self, places: Ints) -> Requests:
        """Some of the requests, in this order.

        A column is copied when it is first asked for: it is right as long as these requests and
        the places stay as they are.
        """
        return _Taken(self, places)

    def names(self, places: Ints) -> list[str]:
        """The ids of some of the requests, in this order."""
        named: list[str] = self.request_id[places].tolist()
        return named

    def with_columns(self, **changed: NDArray[Any]) -> Requests:
        """The same, but for these columns."""
        return Requests({name: getattr(self, name) for name in COLUMNS} | changed)

    def remaining_tokens(self, level: float = 0.9) -> Floats:
        """RequestView.remaining_tokens of every request: (n,)."""
        limit = np.maximum(self.max_tokens - self.output_tokens, 1).astype(np.float64)
        bound = upper_tokens(self.length, level, generated=self.output_tokens)
        # NaN, where nothing is known, gives way.
        remaining: Floats = np.fmin(bound - self.output_tokens, limit)
        return remaining


class _Taken(Requests):
    """Some of the requests, in their own order; few of the columns are ever asked for."""

    __slots__ = ("_places", "_whole")

    def __init__(self, whole: Requests, places: Ints) -> None:  # without columns as yet
        self._whole, self._places = whole, places

    def __getattr__(self, name: str) -> NDArray[Any]:  # asked only while there is none
        if name not in COLUMNS:
            raise AttributeError(name)
        column: NDArray[Any] = getattr(self._whole, name).take(self._places, axis=0)
        setattr(self, name, column)
        return column

    def __len__(self) -> int:
        return len(self._places)

    def names(self, places: Ints) -> list[str]:
        return self._whole.names(self._places[places])


class Numbering:
    """Small whole numbers for names, in the order in which they are first asked for."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, name: str) -> int:
        """This name's number."""
        return self._numbers.setdefault(name, len(self._numbers))


_LIVE = RequestView._fields[3:]  # all but the id, the arrival and the promise
_BY_NAME = ("ttft_s", "tbt_s", "weight", "stage_calls")


def program_name(request_id: str, slo: Slo) -> str:
    """What a request's program goes by: no two are alike, however callers name theirs.

    Two users' programs are two, whatever they are called, and a stream is one by itself, whatever
    run it is part of: it has its own promise, token by token.
    """
    if not slo.program or slo.kind is SloKind.LATENCY:
        return f"alone {request_id}"
    return f"named {(slo.user, slo.program)}"


def new_columns(rows: int) -> dict[str, NDArray[Any]]:
    """Columns with room for so many rows."""
    return {
        name: np.zeros((rows, width) if width else rows, dtype=kind)
        for name, (kind, width) in COLUMNS.items()
    }


def write_promise(
    columns: dict[str, NDArray[Any]], place: int, request_id: str, arrival_s: float, slo: Slo
) -> None:
    """Fill one row with what a request is promised: all but the numbers of program and user."""
    deadline_s = math.inf if slo.deadline_s is None else arrival_s + min(slo.deadline_s, MOST)
    final_s = deadline_s if slo.final_s is None else arrival_s + min(slo.final_s, MOST)
    columns["request_id"][place] = request_id
    columns["slo"][place] = slo
    columns["arrival_s"][place] = arrival_s
    columns["kind"][place] = KINDS.index(slo.kind)
    columns["on_late"][place] = ON_LATE.index(slo.on_late)
    columns["deadline_s"][place] = deadline_s
    columns["final_s"][place] = final_s
    columns["waiting_s"][place] = math.inf if slo.waiting_s is None else min(slo.waiting_s, MOST)
    columns["length"][place] = _known(None if slo.length is None else slo.length.tokens, _NO_LENGTH)
    columns["future"][place] = _known(slo.future, _NO_FUTURE)
    for name in _BY_NAME:
        columns[name][place] = min(max(getattr(slo, name), LEAST), MOST)
    columns["stage"][place] = min(slo.stage, MOST)


def _known(values: Sequence[float] | None, otherwise: tuple[float, ...]) -> Sequence[float]:
    return otherwise if values is None else [min(value, MOST) for value in values]
