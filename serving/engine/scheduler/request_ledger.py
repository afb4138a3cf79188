"""From vLLM's requests to the columns that policies read. Owns the scheduler's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serving.engine.observers.arrivals import Arrivals
from serving.engine.observers.service_counters import ProgramCalls, ServiceCounters
from serving.engine.observers.user_statistics import UserStatistics
from serving.errors import InvalidSlo
from serving.requests import (
    LATENCY,
    MAX_VALUE,
    Floats,
    Requests,
    RequestState,
    begin_second_part,
    new_columns,
    program_name,
    write_slo,
)
from serving.slo import BEST_EFFORT, Slo, from_tags

if TYPE_CHECKING:
    from vllm.v1.request import Request

Clock = Callable[[], float]

OUTPUT_WEIGHT = 2.0
"""Weight of an output token in the service of a user; an input token has the weight 1.

Source: Sheng et al. (2024), Fairness in serving large language models, section 5.
"""

_INITIAL_ROWS = 64  # doubled whenever all are in use

_NO_DRAFTS: Mapping[str, Sequence[int]] = MappingProxyType({})


class RequestLedger:
    """The columns of all requests in the engine, and what is learned from those that end.

    Arrival times are set here, on the engine's clock, so that no clocks of two machines are
    compared. The rows have no gaps. For a view, only rows of requests that hold a slot, or have
    just lost one, are read again from vLLM, so thousands of waiting requests cost nothing.

    Attributes:
        clock: the scheduler's clock, in seconds.
        users: what is counted and learned of users.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self._columns = new_columns(_INITIAL_ROWS)
        self._requests: list[Request] = []  # by row
        self._row: dict[str, int] = {}  # request id -> index of its row
        self._stale: set[str] = set()  # ids of rows to read again
        self._programs = ServiceCounters()
        self._calls = ProgramCalls()
        self.users = UserStatistics()
        self._arrivals = Arrivals()

    def add(self, request: Request, *, cached_tokens: int = 0) -> InvalidSlo | None:
        """Add a request that arrives.

        Args:
            cached_tokens: prompt tokens that the prefix cache holds.
        Returns:
            The error if its SLO tags are malformed; it is then treated as best effort. Raised here,
            the error would end the engine.
        """
        now_s = self.clock()
        error = None
        slo = BEST_EFFORT
        params = request.sampling_params
        try:
            slo = from_tags(params.extra_args if params is not None else None)
        except InvalidSlo as invalid:
            error = invalid
        row = len(self._requests)
        if row == len(self._columns["request_id"]):
            self._columns = _with_doubled_rows(self._columns)
        columns, request_id = self._columns, request.request_id
        write_slo(columns, row, request_id, now_s, slo)
        # A dummy is none of its program's calls: the request that it stands for will be.
        program = request_id if slo.dummy else program_name(request_id, slo)
        is_new = not self._programs.knows(program, now_s)
        is_alone = not self._programs.is_open(program)
        number = self._programs.open(program, now_s)
        columns["program"][row] = number
        self._calls.arrived(number, slo.stage, slo.stage_calls, is_new=is_new, is_alone=is_alone)
        self.users.future_bias.arrived(request_id, number, slo, is_new=is_new)
        columns["user"][row] = self.users.open(slo.user, now_s)
        columns["cached_tokens"][row] = cached_tokens
        columns["priority"][row] = min(max(request.priority, -MAX_VALUE), MAX_VALUE)
        columns["unscheduled_s"][row] = now_s
        self._requests.append(request)
        self._row[request_id] = row
        self._read([row], RequestState.WAITING)
        # A program's first call may be of a later stage: tools may precede it.
        if is_new and error is None and not slo.dummy:
            self._arrivals.add(columns, row)
        return error

    def started(self, cached_tokens: Mapping[str, int]) -> None:
        """Set the prompt tokens that the prefix cache held at the first step of these requests."""
        for request_id, tokens in cached_tokens.items():
            row = self._row[request_id]
            self._columns["cached_tokens"][row] = min(tokens, self._requests[row].num_prompt_tokens)

    def follows(self, request_id: str) -> bool:
        """Whether this request is in the views."""
        return request_id in self._row

    @property
    def is_empty(self) -> bool:
        """Whether there are no requests."""
        return not self._row

    def extended(self, request_id: str) -> None:
        """Note that this request received more input."""
        self._stale.add(request_id)

    def computed(
        self,
        tokens: Mapping[str, int],
        *,
        drafts: Mapping[str, Sequence[int]] = _NO_DRAFTS,
        tokens_per_decode: float = 1.0,
    ) -> None:
        """Count a step: request id -> tokens that it computes.

        Args:
            drafts: the drafted tokens among them; they are not counted, as they may be rejected.
            tokens_per_decode: mean tokens that a decode yields; each decode counts as this many.
        """
        if not tokens:
            return
        # A request that loses its slot before the next view must still be read for it.
        self._stale.update(tokens)
        rows = [self._row[request_id] for request_id in tokens]
        now_s = self.clock()
        self._columns["unscheduled_s"][rows] = now_s
        served = np.fromiter(tokens.values(), dtype=np.float64, count=len(rows))
        if drafts:
            served -= [len(drafts.get(request_id, ())) for request_id in tokens]
        decodes = served == 1  # rarely also the last token of a prompt
        served[decodes] = tokens_per_decode
        self._programs.add(self._columns["program"][rows], served, now_s)
        served[decodes] *= OUTPUT_WEIGHT
        self.users.counters.add(self._columns["user"][rows], served, now_s)

    def forget(self, request_id: str, *, is_complete: bool = False, is_answer: bool = True) -> None:
        """Remove a request that ended, and learn from it; the last row moves into its row.

        Args:
            is_complete: whether its answer is complete.
            is_answer: whether its length predicts others; that of a session's part does not.
        """
        row = self._row.pop(request_id, None)
        if row is None:
            return
        self._stale.discard(request_id)
        program, user = (int(self._columns[name][row]) for name in ("program", "user"))
        request = self._requests[row]
        output_tokens = request.num_output_tokens
        self.users.future_bias.ended(
            request_id, user, output_tokens, is_complete=is_complete and is_answer
        )
        if is_complete:
            self._calls.ended(program, request.num_prompt_tokens + output_tokens)
            if is_answer and output_tokens and self._columns["slo"][row].then_token is None:
                self.users.learn_length(user, self._columns["slo"][row], output_tokens)
            if self._columns["stage"][row] > 0:
                cached_tokens = int(self._columns["cached_tokens"][row])
                self.users.learn_hits(user, request.num_prompt_tokens, cached_tokens)
        self._programs.close(program, self.clock())
        self.users.close(user, self.clock())
        last = self._requests.pop()
        if last.request_id != request_id:
            self._requests[row] = last
            self._row[last.request_id] = row
            for column in self._columns.values():
                column[row] = column[len(self._requests)]
        for name in ("request_id", "slo"):
            self._columns[name][len(self._requests)] = None

    def begin_second_part(self, request_id: str, *, generated: int) -> None:
        """The first part of an answer has ended after these output tokens; a stream follows.

        Like every stream it is a program of its own from now on.
        """
        row, columns = self._row[request_id], self._columns
        slo, user = columns["slo"][row], columns["user"][row : row + 1]
        if slo.length is not None and slo.then_token is not None:
            self.users.learn_length(int(user[0]), slo, generated)
        length_ratio = float(self.users.learned(user)["length_ratio"][0])
        begin_second_part(columns, row, slo, generated=generated, length_ratio=length_ratio)
        now_s = self.clock()
        self._programs.close(int(columns["program"][row]), now_s)
        number = self._programs.open(f"stream {request_id}", now_s)
        self._calls.arrived(number, 0, 1, is_new=True, is_alone=True)
        columns["program"][row] = number

    def slo(self, request_id: str) -> Slo:
        """A request's SLO."""
        slo: Slo = self._columns["slo"][self._row[request_id]]
        return slo

    def last_due_s(self, request_id: str, output_tokens: int) -> float:
        """When an answer of this many tokens must end: by TTFT and TBT, or the final deadline."""
        columns, row = self._columns, self._row[request_id]
        if columns["kind"][row] != LATENCY:
            return float(columns["final_s"][row])
        first_s = columns["arrival_s"][row] + columns["ttft_s"][row]
        return float(first_s + max(output_tokens - 1, 0) * columns["tbt_s"][row])

    def requests(
        self,
        running: Iterable[Request],
        paused: Collection[str],
        *,
        without: Collection[str] = (),
    ) -> Requests:
        """The requests now, with the columns that are learned or counted.

        Args:
            running: requests that hold a slot.
            paused: ids of those among them that are paused.
            without: ids of requests to leave out.
        """
        held = {request.request_id for request in running}
        self._read([self._row[each] for each in self._stale - held], RequestState.WAITING)
        self._read([self._row[each] for each in held], RequestState.RUNNING)
        self._columns["state"][[self._row[each] for each in paused]] = RequestState.PAUSED
        self._stale = held
        count = len(self._requests)
        shown = {name: column[:count] for name, column in self._columns.items()}
        now_s = self.clock()
        shown["program_tokens"] = self._programs.tokens(shown["program"], now_s)
        shown["user_tokens"] = self.users.counters.tokens(shown["user"], now_s)
        shown["stage_missing"] = self._calls.missing(shown["program"])
        shown["ended_tokens"] = self._calls.ended_tokens(shown["program"])
        shown |= self.users.learned(shown["user"])
        if not without:
            return Requests(shown)
        is_shown = np.ones(count, dtype=bool)
        is_shown[[self._row[each] for each in without]] = False
        return Requests(shown).take(np.flatnonzero(is_shown))

    def arrivals(self) -> tuple[Requests, float, Floats]:
        """Arrivals.recent, with the present statistics of each arrival's user.

        The user numbers are still valid: a name is kept for longer than the longest window.
        """
        now_s = self.clock()
        arrivals, arrivals_s, weights = self._arrivals.recent(now_s)
        served = self.users.counters.tokens(arrivals.user, now_s)
        learned = self.users.learned(arrivals.user)
        return arrivals.with_columns(user_tokens=served, **learned), arrivals_s, weights

    def _read(self, rows: list[int], state: RequestState) -> None:
        """Copy vLLM's counts of these requests into their rows."""
        requests, columns = [self._requests[row] for row in rows], self._columns
        columns["state"][rows] = state
        columns["computed_tokens"][rows] = [each.num_computed_tokens for each in requests]
        columns["output_tokens"][rows] = [each.num_output_tokens for each in requests]
        columns["prompt_tokens"][rows] = [each.num_prompt_tokens for each in requests]
        columns["max_tokens"][rows] = [min(each.max_tokens, MAX_VALUE) for each in requests]


def _with_doubled_rows(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    num_rows = len(columns["request_id"])
    doubled = new_columns(2 * num_rows)
    for name, column in columns.items():
        doubled[name][:num_rows] = column
    return doubled
