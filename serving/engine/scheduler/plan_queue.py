"""The waiting line of an engine whose admissions a plan decides."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from vllm.v1.core.sched.request_queue import RequestQueue

if TYPE_CHECKING:
    from vllm.v1.request import Request


class PlanQueue(RequestQueue):
    """Shows vLLM's scheduler only the requests that the plan admits, best first.

    The others are held: counted by ``len``, found by iteration, removable, but neither peeked,
    popped nor making the queue true. A request that no plan has seen is held until one has.
    """

    def __init__(self) -> None:
        self._rank: Mapping[str, int] = {}
        self._admitted: list[tuple[int, str, Request]] = []
        self._held: dict[str, Request] = {}

    def follow(self, rank: Mapping[str, int]) -> None:
        """Take a new plan: the rank of each admitted request; all others are held."""
        held = self._held
        for _, request_id, request in self._admitted:
            held[request_id] = request
        self._rank = rank
        self._admitted = [
            (place, request_id, held.pop(request_id))
            for request_id, place in rank.items()
            if request_id in held
        ]
        heapq.heapify(self._admitted)

    def add_request(self, request: Request) -> None:
        """Enter a request at the place that the plan gives it."""
        rank = self._rank.get(request.request_id)
        if rank is None:
            self._held[request.request_id] = request
        else:
            heapq.heappush(self._admitted, (rank, request.request_id, request))

    def pop_request(self) -> Request:
        """Remove and return the best admitted request; IndexError if none is."""
        return heapq.heappop(self._admitted)[2]

    def peek_request(self) -> Request:
        """The best admitted request; IndexError if none is."""
        return self._admitted[0][2]

    def best(self, is_ready: Callable[[Request], bool]) -> Request | None:
        """The best admitted request of those that are ready, or None."""
        if not self._admitted or is_ready(self._admitted[0][2]):
            return self._admitted[0][2] if self._admitted else None
        ready = [item for item in self._admitted if is_ready(item[2])]
        return min(ready, key=lambda item: item[:2])[2] if ready else None

    def better_than(self, rank: float) -> list[Request]:
        """The admitted requests that the plan puts before this rank, in no order."""
        return [request for place, _, request in self._admitted if place < rank]

    def prepend_request(self, request: Request) -> None:
        """Put a request back; its rank, not its history, decides its place."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put several requests back."""
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        """Take one request out; ValueError if it is not here."""
        before = len(self)
        self.remove_requests([request])
        if len(self) == before:
            raise ValueError(f"{request.request_id} is not waiting")

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take these requests out, wherever they are."""
        ids = (request.request_id for request in requests)
        gone = {request_id for request_id in ids if self._held.pop(request_id, None) is None}
        if gone:
            self._admitted = [item for item in self._admitted if item[1] not in gone]
            heapq.heapify(self._admitted)

    def __bool__(self) -> bool:
        return bool(self._admitted)

    def __len__(self) -> int:
        return len(self._admitted) + len(self._held)

    def __iter__(self) -> Iterator[Request]:
        yield from (item[2] for item in sorted(self._admitted, key=lambda item: item[:2]))
        yield from self._held.values()
