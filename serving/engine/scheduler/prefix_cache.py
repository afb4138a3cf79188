"""Look-ups of a waiting request's prompt in vLLM's prefix cache."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request


def num_cached_tokens(request: Request, manager: KVCacheManager, block_tokens: int) -> int:
    """Number of leading prompt tokens of a request that the prefix cache holds now.

    Found by binary search over block hashes; 0 if the lookup is disabled.
    """
    return block_tokens * _leading_blocks(request, manager, block_tokens, lambda block: True)


def num_shared_blocks(request: Request, manager: KVCacheManager, block_tokens: int) -> int:
    """Number of leading cached blocks that other requests hold now.

    vLLM counts the other cached blocks as free.
    """
    return _leading_blocks(request, manager, block_tokens, _is_held)


def _is_held(block: KVCacheBlock) -> bool:
    return bool(block.ref_cnt > 0)


def _leading_blocks(
    request: Request,
    manager: KVCacheManager,
    block_tokens: int,
    predicate: Callable[[KVCacheBlock], bool],
) -> int:
    """Number of leading blocks of a request's prompt that are cached and satisfy `predicate`."""
    if not manager.prefix_cache_lookup_enabled(request):
        return 0

    def is_missing(index: int) -> bool:
        block_hash = request.block_hashes[index : index + 1]
        groups, hit_tokens, *_ = manager.coordinator.find_longest_cache_hit(
            block_hash, block_tokens
        )
        return hit_tokens == 0 or not all(predicate(block) for blocks in groups for block in blocks)

    # Binary search is correct because the blocks that satisfy the predicate form a prefix: a
    # block's hash covers all blocks before it, vLLM frees the last blocks first, and a request that
    # holds a block also holds those before it.
    max_blocks = min(len(request.block_hashes), (request.num_tokens - 1) // block_tokens)
    return bisect_left(range(max_blocks), True, key=is_missing)
