"""vLLM's requests -> the view that policies read. Owns the scheduler's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving.engine.observers.arrivals import Arrivals
from serving.engine.observers.default_length import DefaultLength
from serving.engine.observers.future_bias import FutureBias
from serving.engine.observers.length_bias import LengthBias
from serving.engine.observers.prefix_hit_rate import PrefixHitRate
from serving.engine.observers.service_counters import FAIR_MEMORY_S, ProgramCalls, ServiceCounters
from serving.errors import InvalidSlo
from serving.requests import (
    LATENCY,
    MAX_VALUE,
    Floats,
    Ints,
    Requests,
    RequestState,
    new_columns,
    program_name,
    write_slo,
)
from serving.slo import BEST_EFFORT, Slo, from_tags

if TYPE_CHECKING:
    from vllm.v1.request import Request

Clock = Callable[[], float]

OUTPUT_WEIGHT = 2.0
"""What an output token counts for its user, where an input token counts 1.

Source: Sheng et al. (2024), Fairness in serving large language models, section 5.
"""

_ROOM = 64  # rows to begin with; doubled when they are full

_NOTHING: Mapping[str, Sequence[int]] = MappingProxyType({})


class RequestLedger:
    """What the scheduler knows of each request beside vLLM's own state, as columns.

    Arrivals are stamped here, on one clock, so that no two machines compare theirs. Rows are kept
    without gaps, and only those of requests that hold a slot, or just lost one, are read anew
    for a view: the thousands that wait cost nothing.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self._columns = new_columns(_ROOM)
        self._rows: list[Request] = []
        self._place: dict[str, int] = {}
        self._stale: set[str] = set()
        self._programs = ServiceCounters()
        self._users = ServiceCounters(lifted=True, memory_s=FAIR_MEMORY_S)
        self._calls = ProgramCalls()
        self._length_bias = LengthBias()
        self._future_bias = FutureBias()
        self._default_length = DefaultLength()
        self._prefix_hit_rate = PrefixHitRate()
        self._learners = (
            self._length_bias,
            self._future_bias,
            self._default_length,
            self._prefix_hit_rate,
        )
        self._arrivals = Arrivals()

    def add(self, request: Request, *, cached_tokens: int = 0) -> InvalidSlo | None:
        """Start to follow a request. Malformed tags are returned, never raised, in the engine.

        Args:
            cached_tokens: of its prompt, what the prefix cache holds.
        """
        now_s = self.clock()
        error = None
        slo = BEST_EFFORT
        params = request.sampling_params
        try:
            slo = from_tags(params.extra_args if params is not None else None)
        except InvalidSlo as invalid:
            error = invalid
        place = len(self._rows)
        if place == len(self._columns["request_id"]):
            self._columns = _with_twice_the_room(self._columns)
        columns, request_id = self._columns, request.request_id
        write_slo(columns, place, request_id, now_s, slo)
        program = program_name(request_id, slo)
        is_new = not self._programs.knows(program, now_s)
        is_alone = not self._programs.is_open(program)
        number = self._programs.open(program, now_s)
        columns["program"][place] = number
        self._calls.arrived(number, slo.stage, slo.stage_calls, is_new=is_new, is_alone=is_alone)
        self._future_bias.arrived(request_id, number, slo, is_new=is_new)
        is_new_user = not self._users.knows(slo.user, now_s)
        columns["user"][place] = self._users.open(slo.user, now_s)
        if is_new_user:
            for learner in self._learners:
                learner.begin(int(columns["user"][place]))
        columns["cached_tokens"][place] = cached_tokens
        columns["priority"][place] = min(max(request.priority, -MAX_VALUE), MAX_VALUE)
        columns["unscheduled_s"][place] = now_s
        self._rows.append(request)
        self._place[request_id] = place
        self._read([place], RequestState.WAITING)
        if is_new and error is None:  # whatever its stage: tools may have come before
            self._arrivals.note(columns, place)
        return error

    def started(self, cached_tokens: Mapping[str, int]) -> None:
        """Note that these requests have begun, and what of each one's prompt was found."""
        for request_id, tokens in cached_tokens.items():
            place = self._place[request_id]
            found = min(tokens, self._rows[place].num_prompt_tokens)
            self._columns["cached_tokens"][place] = found

    def follows(self, request_id: str) -> bool:
        """Whether this request is in the views."""
        return request_id in self._place

    def extended(self, request_id: str) -> None:
        """Note that this request was given more input."""
        self._stale.add(request_id)

    def computed(
        self,
        tokens: Mapping[str, int],
        *,
        drafts: Mapping[str, Sequence[int]] = _NOTHING,
        tokens_per_decode: float = 1.0,
    ) -> None:
        """Note that these requests were part of a step just now, with so many tokens each.

        Args:
            drafts: of these, the tokens that were only drafted; most of them may come to nothing.
            tokens_per_decode: tokens that a decode brings its answer, on average.
        """
        if not tokens:
            return
        self._stale.update(tokens)  # who loses its slot before the next view is read once more
        places = [self._place[request_id] for request_id in tokens]
        now_s = self.clock()
        self._columns["unscheduled_s"][places] = now_s
        served = np.fromiter(tokens.values(), dtype=np.float64, count=len(places))
        if drafts:
            served -= [len(drafts.get(request_id, ())) for request_id in tokens]
        decodes = served == 1  # a prompt's last token now and then, too
        served[decodes] = tokens_per_decode
        self._programs.add(self._columns["program"][places], served, now_s)
        served[decodes] *= OUTPUT_WEIGHT
        self._users.add(self._columns["user"][places], served, now_s)

    def forget(self, request_id: str, *, is_whole: bool = False, is_answer: bool = True) -> None:
        """Stop following a request that ended; the last row takes its place.

        Args:
            is_whole: whether it was not given up.
            is_answer: whether its length tells of others; that of a part of a session does not.
        """
        place = self._place.pop(request_id, None)
        if place is None:
            return
        self._stale.discard(request_id)
        program, user = (int(self._columns[name][place]) for name in ("program", "user"))
        request = self._rows[place]
        output_tokens = request.num_output_tokens
        self._future_bias.ended(request_id, user, output_tokens, is_whole=is_whole and is_answer)
        if is_whole:
            self._calls.ended(program, request.num_prompt_tokens + output_tokens)
            if is_answer and output_tokens:
                self._learn_length(user, self._columns["slo"][place], output_tokens)
            if self._columns["stage"][place] > 0:
                found = int(self._columns["cached_tokens"][place])
                self._prefix_hit_rate.ended(user, request.num_prompt_tokens, found)
        self._programs.close(program, self.clock())
        self._users.close(user, self.clock())
        last = self._rows.pop()
        if last.request_id != request_id:
            self._rows[place] = last
            self._place[last.request_id] = place
            for column in self._columns.values():
                column[place] = column[len(self._rows)]
        for name in ("request_id", "slo"):
            self._columns[name][len(self._rows)] = None

    def _learn_length(self, user: int, slo: Slo, output_tokens: int) -> None:
        if slo.length is None:
            self._default_length.ended(user, output_tokens)
        else:
            self._length_bias.ended(user, slo.length, output_tokens)

    def slo(self, request_id: str) -> Slo:
        """The promise made to a request that is being followed."""
        promise: Slo = self._columns["slo"][self._place[request_id]]
        return promise

    def last_due_s(self, request_id: str, output_tokens: int) -> float:
        """When the last of so many tokens is due: by a stream's schedule, or the final deadline."""
        columns, place = self._columns, self._place[request_id]
        if columns["kind"][place] != LATENCY:
            return float(columns["final_s"][place])
        first_s = columns["arrival_s"][place] + columns["ttft_s"][place]
        return float(first_s + max(output_tokens - 1, 0) * columns["tbt_s"][place])

    def requests(
        self,
        running: Iterable[Request],
        paused: Collection[str],
        *,
        without: Collection[str] = (),
    ) -> Requests:
        """The requests at this moment.

        Args:
            paused: those of `running` that hold still.
            without: those that are not shown.
        """
        held = {request.request_id for request in running}
        self._read([self._place[each] for each in self._stale - held], RequestState.WAITING)
        self._read([self._place[each] for each in held], RequestState.RUNNING)
        self._columns["state"][[self._place[each] for each in paused]] = RequestState.PAUSED
        self._stale = held
        count = len(self._rows)
        shown = {name: column[:count] for name, column in self._columns.items()}
        now_s = self.clock()
        shown["program_tokens"] = self._programs.tokens(shown["program"], now_s)
        shown["user_tokens"] = self._users.tokens(shown["user"], now_s)
        shown["stage_missing"] = self._calls.missing(shown["program"])
        shown["ended_tokens"] = self._calls.ended_tokens(shown["program"])
        shown |= self._learned(shown["user"])
        if not without:
            return Requests(shown)
        is_shown = np.ones(count, dtype=bool)
        is_shown[[self._place[each] for each in without]] = False
        return Requests(shown).take(np.flatnonzero(is_shown))

    def arrivals(self) -> tuple[Requests, float, Floats]:
        """As Arrivals.since, with what is known until now of the users of what arrived.

        Their numbers are still theirs: accounts keep a name for longer than arrivals are shown.
        """
        now_s = self.clock()
        arrivals, arrivals_s, counts = self._arrivals.since(now_s)
        served = self._users.tokens(arrivals.user, now_s)
        learned = self._learned(arrivals.user)
        return arrivals.with_columns(user_tokens=served, **learned), arrivals_s, counts

    def _learned(self, users: Ints) -> dict[str, Floats]:
        """The columns of what was learned of each request's user, from answers that ended."""
        numbers = np.arange(users.max(initial=-1) + 1)  # mostly far fewer than requests
        learned = {
            "length_ratio": self._length_bias.ratios(numbers),
            "future_ratio": self._future_bias.ratios(numbers),
            "default_length": self._default_length.lengths(numbers),
            "prefix_hit_rate": self._prefix_hit_rate.shares(numbers),
        }
        return {name: values.take(users, axis=0) for name, values in learned.items()}

    def _read(self, places: list[int], state: RequestState) -> None:
        requests, columns = [self._rows[place] for place in places], self._columns
        columns["state"][places] = state
        columns["computed_tokens"][places] = [each.num_computed_tokens for each in requests]
        columns["output_tokens"][places] = [each.num_output_tokens for each in requests]
        columns["prompt_tokens"][places] = [each.num_prompt_tokens for each in requests]
        columns["max_tokens"][places] = [min(each.max_tokens, MAX_VALUE) for each in requests]


def _with_twice_the_room(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    rows = len(columns["request_id"])
    wider = new_columns(2 * rows)
    for name, column in columns.items():
        wider[name][:rows] = column
    return wider
