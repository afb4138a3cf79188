"""Programs in closed loop against several replicas in one virtual time.

Each replica's engine is the production scheduler class on a clock of its own. What happens next
anywhere happens next: the end of a step, then a stage that is due, then the begin of a step; at
the same moment in the order of the replicas' names. With one replica all is as in
`serving.sim.drive.driver.replay`, to the last bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from serving.router.choose import Router, as_best_effort
from serving.router.snapshot import RoutedRequest
from serving.sim.drive.closed_loop import ClosedLoop, LiveCall
from serving.sim.drive.driver import Replay, counters_of
from serving.sim.drive.replica import Replica
from serving.sim.drive.stepped import Ended
from serving.sim.programs.programs import Program
from serving.sim.programs.promises import Predictions, slo_of


class FleetReplay(NamedTuple):
    """What came of a workload on several replicas.

    Attributes:
        replay: outcomes and counters of all replicas together.
        calls: by replica, how many calls it was the one to run.
        demoted: calls that no replica would promise anything, served as best effort.
        withdrawn: copies of calls that another replica ran first.
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
        predictions: Predictions,
    ) -> None:
        self._loop = loop
        self._replicas = sorted(replicas, key=lambda each: each.name)
        self._by_name = {each.name: each for each in self._replicas}
        self._router = router
        self._predictions = predictions
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
        """The steps under way end; nothing begins any more."""
        self.now_s = until_s
        for replica in sorted(self._replicas, key=lambda each: (each.ends_s, each.name)):
            if replica.in_step:
                self.now_s = replica.ends_s
                self._finish(replica)

    def _finish_steps(self) -> None:
        for replica in self._replicas:
            if replica.ends_s <= self.now_s:
                self._finish(replica)
                replica.open_inbox()

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

    def _route(self, call: LiveCall) -> None:
        inner = call.call.call
        slo = slo_of(call.program, call.call, self.now_s, self._predictions)
        request = RoutedRequest(
            request_id=call.call_id,
            number=self._number,
            prompt_tokens=inner.prompt_tokens,
            max_tokens=self._predictions.max_tokens,
            slo=slo,
            prefix=call.program.id if inner.shared_prefix_tokens else "",
            prefix_tokens=inner.shared_prefix_tokens,
        )
        self._number += 1
        route = self._router(request, [each.snapshot(self.now_s) for each in self._replicas])
        chosen = tuple(self._by_name[name] for name in route.replicas)
        assert chosen, "a router names a replica"
        assert len(set(chosen)) == len(chosen), "and none twice"
        self._copies[call.call_id] = chosen
        self.demoted += route.best_effort
        if route.best_effort:
            request = request._replace(slo=as_best_effort(slo))
        for replica in chosen:
            submit = partial(self._submit, call, replica, best_effort=route.best_effort)
            replica.submit(request, self.now_s, submit, only=len(chosen) == 1)
        if len(chosen) == 1:
            self.calls[chosen[0].name] += 1

    def _submit(self, call: LiveCall, replica: Replica, now_s: float, *, best_effort: bool) -> None:
        """At the engine's own moment, which is what its scheduler counts the promise from."""
        slo = slo_of(call.program, call.call, now_s, self._predictions)
        call.submit_to(
            replica.engine,
            slo=as_best_effort(slo) if best_effort else slo,
            predictions=self._predictions,
        )

    def _bind(self, request_id: str, winner: Replica) -> None:
        """The first replica that runs a copy has the call; the other copies are withdrawn."""
        winner.undecided.discard(request_id)
        others = [each for each in self._copies[request_id] if each is not winner]
        self._copies[request_id] = (winner,)
        self.calls[winner.name] += 1
        self.withdrawn += len(others)
        for replica in others:
            replica.withdraw(request_id, self.now_s)

    def _end(self, ended: Ended, replica: Replica) -> None:
        """A copy that one replica drops goes on waiting elsewhere; the last one ends the call."""
        copies = self._copies.get(ended.request_id, ())
        if replica not in copies:
            return  # another replica has it by now
        rest = tuple(each for each in copies if each is not replica)
        if rest:
            self._copies[ended.request_id] = rest
            return
        del self._copies[ended.request_id]
        for lost in self._loop.end(ended, self.now_s):
            for holder in self._copies.pop(lost.call_id):
                holder.withdraw(lost.call_id, self.now_s)


def run_fleet(
    programs: Iterable[Program],
    replicas: Sequence[Replica],
    router: Router,
    *,
    predictions: Predictions | None = None,
    until_s: float,
) -> FleetReplay:
    """Run programs until all are done, or until a moment of virtual time.

    Args:
        replicas: idle, at time 0, of different names.
        until_s: what is not done by then is reported as it stands; no step begins at it or later.
    """
    assert replicas, "somebody must serve"
    assert len({each.name for each in replicas}) == len(replicas), "names are unique"
    loop = ClosedLoop(programs)
    fleet = _Fleet(loop, replicas, router, predictions or Predictions())
    fleet.run(until_s)
    counters = counters_of(each.stepper for each in replicas)
    return FleetReplay(
        Replay(loop.outcomes(), counters, fleet.now_s),
        dict(fleet.calls),
        fleet.demoted,
        fleet.withdrawn,
    )
