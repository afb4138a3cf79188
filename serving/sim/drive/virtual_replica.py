"""A virtual engine with the properties that a router needs."""

from __future__ import annotations

from collections.abc import Callable

from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine


class VirtualReplica(VirtualEngine):
    """The production scheduler on a simulated machine, one of several.

    Args:
        clock: returns seconds; each replica has its own, as their steps differ in time.
    """

    def __init__(self, config: VirtualConfig, clock: Callable[[], float]) -> None:
        super().__init__(config, clock)
        self.slots = config.slots
        self.kv_blocks = self.free_blocks
        self.caches_prefixes = config.prefix_caching

    def has_begun(self, request_id: str) -> bool:
        """Whether a request that has not ended has been part of a planned step."""
        request = self.scheduler.requests.get(request_id)
        return request is not None and request.num_computed_tokens > 0
