"""Users' arguments, results and texts in the store: what is kept of them, and how encoded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.durability.outcomes import message_of
from store.payload_codec import JSON, TEXT, decoded, encoded
from store.records import StepOutcome, StepRecord

if TYPE_CHECKING:
    from store.session import Store
    from store.unit_of_work import Transaction

SMALL_BYTES = 512
"""Larger results are stored as payloads; others in the step's own row."""


class UserData:
    """Writes and reads the users' data of runs.

    Args:
        durable: keep arguments and results.
        record_text: keep prompts, answers and messages of errors.
    """

    def __init__(self, store: Store, *, durable: bool, record_text: bool) -> None:
        self._store = store
        self.is_durable = durable
        self._record_text = record_text

    async def put_json(self, tx: Transaction, data: bytes | None) -> str | None:
        """Store a payload of JSON and return its hash; None without data or if not durable."""
        if not self.is_durable or data is None:
            return None
        return await tx.payloads.put(encoded(self._store.codec, data, JSON), media_type=JSON)

    async def put_text(self, tx: Transaction, text: str) -> str | None:
        """Store a prompt or an answer and return its hash; None if texts are not recorded."""
        if not (self._record_text and text):
            return None
        # A lone surrogate cannot be encoded, and must not make the whole write fail.
        data = encoded(self._store.codec, text.encode(errors="replace"), TEXT)
        return await tx.payloads.put(data, media_type=TEXT)

    async def with_result(
        self, tx: Transaction, outcome: StepOutcome, result: bytes | None
    ) -> StepOutcome:
        """An outcome with its result, which is stored if it is large."""
        if result is None or not self.is_durable:
            return outcome
        if len(result) > SMALL_BYTES:
            return replace(outcome, result_payload=await self.put_json(tx, result))
        return replace(outcome, result=encoded(self._store.codec, result, JSON))

    def value(self, step: StepRecord) -> StepRecord | None:
        """A step of kind VALUE as it is stored; None if it is not."""
        if not self.is_durable:
            return None
        assert step.result is not None, "a value is never without a result"
        return replace(step, result=encoded(self._store.codec, step.result, JSON))

    def result_of_value(self, step: StepRecord) -> bytes | None:
        """The recorded result of a step of kind VALUE; raises PayloadEncoded."""
        return None if step.result is None else decoded(self._store.codec, step.result)

    async def result_of(self, step: StepRecord) -> bytes | None:
        """A step's recorded result, None if there is none; raises PayloadEncoded."""
        if step.result_payload is None:
            return self.result_of_value(step)
        async with self._store.reading() as tx:
            return decoded(self._store.codec, await tx.payloads.get(step.result_payload))

    def message_of(self, error: BaseException | None) -> str | None:
        """An error's message as it is recorded: not encoded, so not with a codec."""
        return message_of(error, may_quote=self._record_text and self._store.codec is None)
