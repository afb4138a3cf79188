"""What vLLM's prefix cache holds of a request that waits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request


def cached_tokens(request: Request, manager: KVCacheManager, block_tokens: int) -> int:
    """Of its prompt, what the cache holds now, by few looks; 0 if these cannot tell."""
    return block_tokens * _leading_blocks(request, manager, block_tokens, lambda block: True)


def shared_blocks(request: Request, manager: KVCacheManager, block_tokens: int) -> int:
    """Of those cached blocks, how many other requests hold now; the others count as free."""
    return _leading_blocks(request, manager, block_tokens, _is_held)


def _is_held(block: KVCacheBlock) -> bool:
    return bool(block.ref_cnt > 0)


def _leading_blocks(
    request: Request,
    manager: KVCacheManager,
    block_tokens: int,
    counts: Callable[[KVCacheBlock], bool],
) -> int:
    """How many blocks its prompt begins with that are cached, and count."""
    if not manager.prefix_cache_lookup_enabled(request):
        return 0

    def is_missing(place: int) -> bool:
        own_hash = request.block_hashes[place : place + 1]
        groups, found, *_ = manager.coordinator.find_longest_cache_hit(own_hash, block_tokens)
        return found == 0 or not all(counts(block) for blocks in groups for block in blocks)

    # A block's hash is of all before it too: vLLM gives up the last blocks first, and whoever
    # holds one holds those before it.
    most = min(len(request.block_hashes), (request.num_tokens - 1) // block_tokens)
    return bisect_left(range(most), True, key=is_missing)
