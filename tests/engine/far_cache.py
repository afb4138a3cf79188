"""A connector of vLLM's to a KV cache that is elsewhere: the scheduler's side of one, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

if TYPE_CHECKING:
    from vllm.v1.request import Request

FAR = "far"
"""The prompts of requests whose ids begin so are elsewhere, but for their last block."""


class FarCache(KVConnectorBase_V1):
    """Each prompt is loaded once, beside the steps; a test says when that has ended."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._asked: set[str] = set()

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int, bool]:
        if not request.request_id.startswith(FAR) or request.request_id in self._asked:
            return 0, False
        whole = (request.num_prompt_tokens - 1) // 16 * 16
        return whole - num_computed_tokens, True

    def update_state_after_alloc(self, request: Request, *_: Any) -> None:
        self._asked.add(request.request_id)

    def build_connector_meta(self, *_: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def start_load_kv(self, *_: Any, **__: Any) -> None: ...

    def wait_for_layer_load(self, *_: Any) -> None: ...

    def save_kv_layer(self, *_: Any, **__: Any) -> None: ...

    def wait_for_save(self) -> None: ...
