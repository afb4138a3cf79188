"""A KV connector of vLLM for tests: the scheduler's side of a remote KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

if TYPE_CHECKING:
    from vllm.v1.request import Request

REMOTE = "remote"
"""Prefix of request ids: their prompts, except the last block, are in the remote cache."""


class RemoteKvCache(KVConnectorBase_V1):
    """Loads each prompt once, in parallel with the steps; the test ends the loading."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._requested: set[str] = set()

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int, bool]:
        if not request.request_id.startswith(REMOTE) or request.request_id in self._requested:
            return 0, False
        stored_tokens = (request.num_prompt_tokens - 1) // 16 * 16
        return stored_tokens - num_computed_tokens, True

    def update_state_after_alloc(self, request: Request, *_: Any) -> None:
        self._requested.add(request.request_id)

    def build_connector_meta(self, *_: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def start_load_kv(self, *_: Any, **__: Any) -> None: ...

    def wait_for_layer_load(self, *_: Any) -> None: ...

    def save_kv_layer(self, *_: Any, **__: Any) -> None: ...

    def wait_for_save(self) -> None: ...
