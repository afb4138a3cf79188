"""How much of a waiting request's prompt vLLM's prefix cache holds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request


def num_cached_tokens(request: Request, manager: KVCacheManager, block_tokens: int) -> int:
    """How many of its prompt tokens the cache holds now.

    Found by binary search over block hashes; 0 if the lookup is disabled.
    """
    return block_tokens * _leading_blocks(request, manager, block_tokens, lambda block: True)


def num_shared_blocks(request: Request, manager: KVCacheManager, block_tokens: int) -> int:
    """How many of those cached blocks other requests hold now; the rest count as free."""
    return _leading_blocks(request, manager, block_tokens, _is_held)


def _is_held(block: KVCacheBlock) -> bool:
    return bool(block.ref_cnt > 0)


def _leading_blocks(
    request: Request,
    manager: KVCacheManager,
    block_tokens: int,
    counts: Callable[[KVCacheBlock], bool],
) -> int:
    """How many leading blocks of its prompt are cached and satisfy `counts`."""
    if not manager.prefix_cache_lookup_enabled(request):
        return 0

    def is_missing(place: int) -> bool:
        own_hash = request.block_hashes[place : place + 1]
        groups, found, *_ = manager.coordinator.find_longest_cache_hit(own_hash, block_tokens)
        return found == 0 or not all(counts(block) for blocks in groups for block in blocks)

    # A block's hash covers all blocks before it. vLLM frees the last blocks first, and a request
    # that holds a block holds those before it: so cached blocks are a prefix.
    most = min(len(request.block_hashes), (request.num_tokens - 1) // block_tokens)
    return bisect_left(range(most), True, key=is_missing)
