"""Runs programs in closed loop on several replicas in one virtual time.

Each replica's engine is the production scheduler class with its own clock. Events are processed by
time; at the same time first the ends of steps, then due stages, then the starts of steps, each in
the order of the replicas' names. With one replica the outcomes are exactly those of
`serving.sim.drive.driver.replay`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from serving.router.choose import Router, as_best_effort
from serving.router.snapshot import RoutedRequest
from serving.sim.drive.closed_loop import ActiveCall, ClosedLoop
from serving.sim.drive.driver import Replay, counters_of
from serving.sim.drive.replica import Replica
from serving.sim.drive.stepped import Ended
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictor import Predictor
from serving.sim.programs.programs import Program


class FleetReplay(NamedTuple):
    """The outcomes of a workload on several replicas.

    Attributes:
        replay: outcomes and counters of all replicas together.
        calls: replica -> number of calls that it ran.
        demoted: number of calls that were served as best effort, as no replica could meet their
            SLO.
        withdrawn: number of copies of calls that were aborted because another replica ran the call.
    """

    replay: Replay
    calls: Mapping[str, int]
    demoted: int
    withdrawn: int


class _Fleet:
    def __init__(
        self,
        loop: ClosedLoop,
        replicas: Sequence[Replica],
        router: Router,
        predictor: Predictor,
    ) -> None:
        self._loop = loop
        self._replicas = sorted(replicas, key=lambda each: each.name)
        self._by_name = {each.name: each for each in self._replicas}
        self._router = router
        self._predictor = predictor
        self._copies: dict[str, tuple[Replica, ...]] = {}
        self._number = 0
        self.now_s = 0.0
        self.calls = Counter(dict.fromkeys(self._by_name, 0))
        self.demoted = 0
        self.withdrawn = 0

    def run(self, until_s: float) -> None:
        while self.now_s < until_s:
            next_s = min(self._loop.next_s, *(each.ends_s for each in self._replicas))
            if math.isinf(next_s):
                return
            if next_s >= until_s:
                self._stop(until_s)
                return
            self.now_s = next_s
            self._finish_steps()
            for call in self._loop.due(next_s):
                self._route(call)
            self._plan_steps()

    def _stop(self, until_s: float) -> None:
        """Finish the running steps; no new step starts."""
        self.now_s = until_s
        for replica in sorted(self._replicas, key=lambda each: (each.ends_s, each.name)):
            if replica.in_step:
                self.now_s = replica.ends_s
                self._finish(replica)

    def _finish_steps(self) -> None:
        for replica in self._replicas:
            if replica.ends_s <= self.now_s:
                self._finish(replica)
                replica.deliver_inbox()

    def _plan_steps(self) -> None:
        for replica in self._replicas:
            if not replica.in_step and replica.engine.has_work:
                for request_id in replica.plan(self.now_s, self._loop.next_s):
                    self._bind(request_id, replica)

    def _finish(self, replica: Replica) -> None:
        progress = replica.finish()
        for request_id in progress.tokens:
            if self._copies.get(request_id) == (replica,):
                self._loop.token(request_id, self.now_s)
        for ended in progress.ended:
            self._end(ended, replica)

    def _route(self, call: ActiveCall) -> None:
        tokens = call.call.call
        slo = self._predictor.slo_of(call.program, call.call, self.now_s)
        request = RoutedRequest(
            request_id=call.call_id,
            number=self._number,
            prompt_tokens=tokens.prompt_tokens,
            max_tokens=self._predictor.max_tokens,
            slo=slo,
            prefix=call.program.id if tokens.shared_prefix_tokens else "",
            prefix_tokens=tokens.shared_prefix_tokens,
        )
        self._number += 1
        route = self._router(request, [each.snapshot(self.now_s) for each in self._replicas])
        chosen = tuple(self._by_name[name] for name in route.replicas)
        assert chosen, "a router must name at least one replica"
        assert len(set(chosen)) == len(chosen), "a router must name each replica only once"
        self._copies[call.call_id] = chosen
        self.demoted += route.best_effort
        if route.best_effort:
            request = request._replace(slo=as_best_effort(slo))
        for replica in chosen:
            submit = partial(self._submit, call, replica, best_effort=route.best_effort)
            replica.submit(request, self.now_s, submit, only=len(chosen) == 1)
        if len(chosen) == 1:
            self.calls[chosen[0].name] += 1

    def _submit(
        self, call: ActiveCall, replica: Replica, now_s: float, *, best_effort: bool
    ) -> None:
        """Submit at the engine's own time, from which its scheduler counts the SLO."""
        slo = self._predictor.slo_of(call.program, call.call, now_s)
        call.submit_to(
            replica.engine,
            slo=as_best_effort(slo) if best_effort else slo,
            max_tokens=self._predictor.max_tokens,
        )

    def _bind(self, request_id: str, winner: Replica) -> None:
        """Bind a call to the first replica that runs a copy of it; withdraw the other copies."""
        winner.unbound_copies.discard(request_id)
        others = [each for each in self._copies[request_id] if each is not winner]
        self._copies[request_id] = (winner,)
        self.calls[winner.name] += 1
        self.withdrawn += len(others)
        for replica in others:
            replica.withdraw(request_id, self.now_s)

    def _end(self, ended: Ended, replica: Replica) -> None:
        """The end of a copy; the call ends with its last copy."""
        copies = self._copies.get(ended.request_id, ())
        if replica not in copies:
            return  # the call is bound to another replica
        remaining = tuple(each for each in copies if each is not replica)
        if remaining:
            self._copies[ended.request_id] = remaining
            return
        del self._copies[ended.request_id]
        for call in self._loop.end(ended, self.now_s):
            for holder in self._copies.pop(call.call_id):
                holder.withdraw(call.call_id, self.now_s)


def run_fleet(
    programs: Iterable[Program],
    replicas: Sequence[Replica],
    router: Router,
    *,
    predictor: Predictor | None = None,
    until_s: float,
) -> FleetReplay:
    """Run programs until all are done, or until a moment of virtual time.

    Args:
        replicas: idle, at time 0, with different names.
        until_s: programs that have not ended by then are reported with their progress so far; no
            step starts at until_s or later.
    """
    assert replicas, "a fleet needs at least one replica"
    assert len({each.name for each in replicas}) == len(replicas), "names are unique"
    predictor = predictor or Predictions()
    loop = ClosedLoop(programs, predictor)
    fleet = _Fleet(loop, replicas, router, predictor)
    fleet.run(until_s)
    counters = counters_of(each.stepper for each in replicas)
    return FleetReplay(
        Replay(loop.outcomes(), counters, fleet.now_s),
        dict(fleet.calls),
        fleet.demoted,
        fleet.withdrawn,
    )
