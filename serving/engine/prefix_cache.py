"""What vLLM's prefix cache holds of a request that has not begun."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request


def cached_tokens(request: Request, manager: KVCacheManager, block_tokens: int) -> int:
    """Of its prompt, what the cache holds now, by few looks; 0 if these cannot tell."""
    if not manager.prefix_cache_lookup_enabled(request):
        return 0

    def is_missing(block: int) -> bool:
        own_hash = request.block_hashes[block : block + 1]
        found: int = manager.coordinator.find_longest_cache_hit(own_hash, block_tokens)[1]
        return found == 0

    # A block's hash is of all before it too, and vLLM gives up the last blocks first.
    most = min(len(request.block_hashes), (request.num_tokens - 1) // block_tokens)
    return int(block_tokens * bisect_left(range(most), True, key=is_missing))
