"""vLLM's waiting queue, with admission and order decided by a plan."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from vllm.v1.core.sched.request_queue import RequestQueue

if TYPE_CHECKING:
    from vllm.v1.request import Request


class PlanQueue(RequestQueue):
    """Shows vLLM's scheduler only the requests that the plan admits, best first.

    The other requests are held: ``len``, iteration and removal include them; ``bool``, peek and pop
    do not. A new request is held until a plan admits it.
    """

    def __init__(self) -> None:
        self._rank: Mapping[str, int] = {}
        self._admitted: list[tuple[int, str, Request]] = []
        self._held: dict[str, Request] = {}

    def follow(self, rank: Mapping[str, int]) -> None:
        """Follow a new plan: the rank of each admitted request. All other requests are held."""
        held = self._held
        for _, request_id, request in self._admitted:
            held[request_id] = request
        self._rank = rank
        self._admitted = [
            (position, request_id, held.pop(request_id))
            for request_id, position in rank.items()
            if request_id in held
        ]
        heapq.heapify(self._admitted)

    def add_request(self, request: Request) -> None:
        """Enqueue a request at its rank in the plan."""
        rank = self._rank.get(request.request_id)
        if rank is None:
            self._held[request.request_id] = request
        else:
            heapq.heappush(self._admitted, (rank, request.request_id, request))

    def pop_request(self) -> Request:
        """Remove and return the best admitted request; IndexError if there is none."""
        return heapq.heappop(self._admitted)[2]

    def peek_request(self) -> Request:
        """The best admitted request; IndexError if there is none."""
        return self._admitted[0][2]

    def best(self, is_ready: Callable[[Request], bool]) -> Request | None:
        """The best admitted request of those that are ready, or None."""
        if not self._admitted or is_ready(self._admitted[0][2]):
            return self._admitted[0][2] if self._admitted else None
        ready = [item for item in self._admitted if is_ready(item[2])]
        return min(ready, key=lambda item: item[:2])[2] if ready else None

    def better_than(self, rank: float) -> list[Request]:
        """The admitted requests with a better (lower) rank, in no particular order."""
        return [request for position, _, request in self._admitted if position < rank]

    def prepend_request(self, request: Request) -> None:
        """Enqueue a request again, at its rank: a plan orders requests, not their history."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Enqueue several requests again, each at its rank."""
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        """Remove a request; ValueError if it is not in the queue."""
        before = len(self)
        self.remove_requests([request])
        if len(self) == before:
            raise ValueError(f"{request.request_id} is not waiting")

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove these requests, admitted or held."""
        ids = (request.request_id for request in requests)
        not_held = {request_id for request_id in ids if self._held.pop(request_id, None) is None}
        if not_held:
            self._admitted = [item for item in self._admitted if item[1] not in not_held]
            heapq.heapify(self._admitted)

    def __bool__(self) -> bool:
        return bool(self._admitted)

    def __len__(self) -> int:
        return len(self._admitted) + len(self._held)

    def __iter__(self) -> Iterator[Request]:
        yield from (item[2] for item in sorted(self._admitted, key=lambda item: item[:2]))
        yield from self._held.values()
