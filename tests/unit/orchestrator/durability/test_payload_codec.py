"""A payload codec: users' data is encoded in the store, and a run is resumed all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from cli.commands.answer import _answer
from orchestrator import (
    InvalidSettings,
    Settings,
    flow,
    input_required,
    llm,
    open_runtime,
    step,
    tool,
    uuid,
)
from orchestrator.events import Event, InputRequired
from orchestrator.testing import ScriptedEngine
from store.errors import PayloadEncoded, PayloadNotEncoded
from store.payload_codec import PayloadCodec, decoded, encoded
from store.records import Status
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import recorded, store_url
from tests.unit.orchestrator.run_samples import ID

WORD = "confidential"


class Encryption:
    """A codec as a user would write it."""

    name = "fernet"

    def __init__(self) -> None:
        self._fernet = Fernet(Fernet.generate_key())

    def encode(self, data: bytes, media_type: str) -> bytes:
        return self._fernet.encrypt(data)

    def decode(self, data: bytes) -> bytes:
        return self._fernet.decrypt(data)


class Redaction:
    """Keeps what a resume needs, and no text of a prompt or answer."""

    name = "redaction"

    def encode(self, data: bytes, media_type: str) -> bytes:
        return b"(removed)" if media_type == "text/plain" else data

    def decode(self, data: bytes) -> bytes:
        return data


encryption, redaction = Encryption(), Redaction()


def settings(folder: Path, codec: str | None) -> Settings:
    name = None if codec is None else f"{__name__}:{codec}"
    return Settings(store=store_url(folder), payload_codec=name, record_text=True, fit_every=0)


def answering() -> ScriptedEngine:
    return ScriptedEngine(lambda _: f"{WORD} answer")


raise_once = RaiseOnce()


@step
async def long_step(topic: str) -> str:
    return f"{topic} " * 200


@flow
async def secretive(topic: str) -> list[str]:
    texts = [topic, str(uuid()), await llm(topic), await long_step(topic)]
    raise_once()
    return texts


async def test_no_file_of_an_encrypted_store_has_a_text_and_its_run_is_resumed(
    tmp_path: Path,
) -> None:
    engine = answering()
    async with open_runtime(settings(tmp_path, "encryption"), engine=engine) as runtime:
        await run_until_interrupted(runtime, secretive, WORD)
        first = await runtime.resume(ID)
        again = await runtime.resume(ID)  # from the recorded result
        assert first.value == again.value
        assert first.value[2] == f"{WORD} answer"
        assert len(engine.requests) == 1
        assert files_with_text(tmp_path) == []
    async with open_runtime(settings(tmp_path, None), engine=answering()) as runtime:
        with pytest.raises(PayloadEncoded, match=r"'fernet'.*ORCHESTRATE_PAYLOAD_CODEC"):
            await runtime.resume(ID)


async def test_a_store_without_a_codec_has_the_texts(tmp_path: Path) -> None:
    """Else the test above would find nothing in any case."""
    async with open_runtime(settings(tmp_path, None), engine=answering()) as runtime:
        await runtime.run(secretive, WORD)
        assert files_with_text(tmp_path) != []


def files_with_text(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if WORD.encode() in each.read_bytes()]


async def test_a_run_that_was_recorded_without_a_codec_is_resumed_with_one(tmp_path: Path) -> None:
    fail = RaiseOnce()

    @flow
    async def changing() -> str:
        text = await llm("question")
        fail()
        return text

    async with open_runtime(settings(tmp_path, None), engine=answering()) as runtime:
        await run_until_interrupted(runtime, changing)
    async with open_runtime(settings(tmp_path, "encryption"), engine=answering()) as runtime:
        assert (await runtime.resume(ID, changing)).value == f"{WORD} answer"


async def test_a_codec_can_remove_prompts_and_answers(tmp_path: Path) -> None:
    @flow
    async def asking() -> int:
        return len(await llm(f"{WORD} prompt"))

    async with open_runtime(settings(tmp_path, "redaction"), engine=answering()) as runtime:
        result = await runtime.run(asking)
        [call] = (await recorded(runtime.store, result.run_id)).calls
        async with runtime.store.reading() as tx:
            assert call.prompt_payload is not None
            assert b"(removed)" in await tx.payloads.get(call.prompt_payload)


async def test_an_answer_that_a_person_gives_is_encoded(tmp_path: Path) -> None:
    @flow
    async def asking() -> str:
        return await input_required("What?")

    asked = asyncio.Event()

    def listen(event: Event) -> None:
        if isinstance(event, InputRequired):
            asked.set()

    with_codec = settings(tmp_path, "encryption")
    async with open_runtime(with_codec, engine=answering(), on_event=listen) as runtime:
        handle = runtime.start(asking.options(run_id=ID))
        async with asyncio.timeout(30):
            await asked.wait()
            await _answer(with_codec, ID, WORD, None)
            assert (await handle).value == WORD
        assert files_with_text(tmp_path) == []


@pytest.mark.parametrize("reference", ["no_such:x", f"{__name__}:WORD", f"{__name__}:Encryption"])
async def test_a_setting_that_names_no_codec_is_refused(tmp_path: Path, reference: str) -> None:
    wrong = Settings(store=store_url(tmp_path), payload_codec=reference)
    with pytest.raises(InvalidSettings, match="PAYLOAD_CODEC"):
        async with open_runtime(wrong, engine=answering()):
            pass


@pytest.mark.parametrize("codec", [None, encryption, redaction])
@pytest.mark.parametrize("data", [b"", b"{}", b"\x00codec:", b"\x00codec:fernet\x00x", b"\xff"])
def test_data_is_decoded_as_it_was(codec: PayloadCodec | None, data: bytes) -> None:
    assert decoded(codec, encoded(codec, data, "application/json")) == data


def test_data_of_another_codec_is_refused() -> None:
    with pytest.raises(PayloadEncoded, match="'fernet', and the codec is 'redaction'"):
        decoded(redaction, encoded(encryption, b"x", "text/plain"))


class Failing:
    """A codec whose key service fails once something was sent."""

    name = "failing"

    def __init__(self) -> None:
        self.fails = False

    def encode(self, data: bytes, media_type: str) -> bytes:
        if self.fails:
            raise ConnectionError("no key")
        return data

    def decode(self, data: bytes) -> bytes:
        return data


failing = Failing()


async def test_the_outcome_of_an_effect_that_a_codec_lost_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_sent = 0

    @tool
    async def send() -> str:
        nonlocal num_sent
        num_sent += 1
        monkeypatch.setattr(failing, "fails", True)
        return "sent"

    @flow
    async def persistent() -> str:
        try:
            return await send()
        except Exception:
            monkeypatch.setattr(failing, "fails", False)
            return await long_step("other")

    async with open_runtime(settings(tmp_path, "failing"), engine=answering()) as runtime:
        with pytest.raises(PayloadNotEncoded):
            await runtime.run(persistent.options(run_id=ID))
        step_of_send = (await recorded(runtime.store, ID)).journal["send"]
        assert step_of_send.status is Status.RUNNING  # so it is unknown, and not repeated
        await runtime.resume(ID, persistent)
    assert num_sent == 1
