"""A virtual engine as one of several: it also tells whom it has begun, and what room it has."""

from __future__ import annotations

from collections.abc import Callable

from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine


class VirtualReplica(VirtualEngine):
    """The production scheduler over a made-up machine, to be driven beside others.

    Args:
        clock: seconds, its own: the replicas' steps begin and end at different times.
    """

    def __init__(self, config: VirtualConfig, clock: Callable[[], float]) -> None:
        super().__init__(config, clock)
        self.slots = config.slots
        self.kv_blocks = self.free_blocks
        self.caches_prefixes = config.prefix_caching

    def has_begun(self, request_id: str) -> bool:
        """Whether a request that has not ended is part of a planned step, or of one before it."""
        request = self.scheduler.requests.get(request_id)
        return request is not None and request.num_computed_tokens > 0
