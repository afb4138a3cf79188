"""PlanQueue compared with a list: the admitted requests, their order, and the held ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.strategies import examples


@dataclass(frozen=True)
class Waiting:
    """The fields of a request that the queue reads."""

    request_id: str


IDS = st.integers(0, 15).map(lambda number: f"{number:02}")


class QueueAndList(RuleBasedStateMachine):
    """The same operations on the queue and on a list of ids."""

    def __init__(self) -> None:
        super().__init__()
        from serving.engine.scheduler.plan_queue import PlanQueue

        self.queue: Any = PlanQueue()
        self.ids: list[str] = []
        self.rank: dict[str, int] = {}

    @property
    def admitted(self) -> list[str]:
        return sorted(
            (request_id for request_id in self.ids if request_id in self.rank),
            key=lambda request_id: (self.rank[request_id], request_id),
        )

    @rule(request_id=IDS, is_preempted=st.booleans())
    def add(self, request_id: str, is_preempted: bool) -> None:
        if request_id not in self.ids:
            self.ids.append(request_id)
            add = self.queue.prepend_request if is_preempted else self.queue.add_request
            add(Waiting(request_id))

    @rule(request_ids=st.lists(IDS, unique=True))
    def prepend_several(self, request_ids: list[str]) -> None:
        new = [request_id for request_id in request_ids if request_id not in self.ids]
        self.ids += new
        self.queue.prepend_requests([Waiting(request_id) for request_id in new])

    @rule(ranks=st.dictionaries(IDS, st.integers(0, 9)))
    def follow(self, ranks: dict[str, int]) -> None:
        self.rank = ranks
        self.queue.follow(ranks)

    @rule()
    def pop(self) -> None:
        if not self.admitted:
            with pytest.raises(IndexError):
                self.queue.pop_request()
            return
        best = self.admitted[0]
        assert self.queue.pop_request() == Waiting(best)
        self.ids.remove(best)

    @rule(request_id=IDS)
    def remove(self, request_id: str) -> None:
        if request_id not in self.ids:
            with pytest.raises(ValueError, match="not waiting"):
                self.queue.remove_request(Waiting(request_id))
            return
        self.queue.remove_request(Waiting(request_id))
        self.ids.remove(request_id)

    @rule(request_ids=st.lists(IDS, unique=True))
    def remove_several(self, request_ids: list[str]) -> None:
        """vLLM also removes requests that are not in the queue."""
        self.queue.remove_requests([Waiting(request_id) for request_id in request_ids])
        self.ids = [request_id for request_id in self.ids if request_id not in request_ids]

    @invariant()
    def iterates_over_the_admitted_best_first_and_counts_all(self) -> None:
        listed = [request.request_id for request in self.queue]
        assert listed[: len(self.admitted)] == self.admitted
        assert sorted(listed) == sorted(self.ids)
        assert len(self.queue) == len(self.ids)

    @invariant()
    def is_true_and_peeks_only_while_a_request_is_admitted(self) -> None:
        assert bool(self.queue) == bool(self.admitted)
        if self.admitted:
            assert self.queue.peek_request() == Waiting(self.admitted[0])
        else:
            with pytest.raises(IndexError):
                self.queue.peek_request()


def test_the_queue_equals_a_list_of_which_a_plan_admits_some(imported_vllm: None) -> None:
    run_state_machine_as_test(
        QueueAndList, settings=settings(deadline=None, max_examples=examples(60))
    )
