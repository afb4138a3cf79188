"""Arguments of flows: read back by a resumed run as they were given, or refused."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import SecretStr

from orchestrator import ArgumentsDiffer, ResultNotSerialisable, RunNotResumable, flow, step
from orchestrator.durability.arguments import Arguments, ArgumentsNotRecorded
from orchestrator.durability.digests import CallDigest
from tests.unit.orchestrator.interrupted_runs import RaiseOnce
from tests.unit.orchestrator.orchestrator_samples import Boom, scripted_runtime
from tests.unit.orchestrator.run_samples import ID


class Reply(StrEnum):
    YES = "yes"


@dataclass
class Partly:
    compared: int
    hidden: Any = field(default=None, compare=False)


def body(
    at: datetime, *rest: deque[int], note: Partly | None = None, **more: dict[str, Any]
) -> None:
    """The flow of these tests."""


AT = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)


def test_arguments_are_read_back_with_their_types_and_contents() -> None:
    given = Arguments((AT, deque([1])), {"note": Partly(1, [2]), "more": {"a": [1.5, None]}})
    read = Arguments.load(body, given.dump(body))
    assert repr((read.args, read.kwargs)) == repr((given.args, given.kwargs))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (Arguments((AT, deque([1], maxlen=2)), {}), "rest"),
        (Arguments((AT,), {"note": Partly(1, (2,))}), "note"),
        (Arguments((AT,), {"more": {"reply": Reply.YES}}), "more"),
    ],
)
def test_an_argument_that_would_be_read_back_differently_is_refused(
    arguments: Arguments, name: str
) -> None:
    with pytest.raises(ResultNotSerialisable, match=f"argument {name}"):
        arguments.dump(body)


SECRET = "sk-do-not-record"


def ask(question: str, key: SecretStr, client: object = None, *, depth: int = 1) -> None:
    """A flow with arguments that are not recorded."""


def test_a_secret_is_not_recorded_and_must_be_given_again() -> None:
    given = Arguments(("why?", SecretStr(SECRET)), {"depth": 3})
    recorded = given.dump_partly(ask)
    assert recorded is not None
    assert SECRET.encode() not in recorded
    with pytest.raises(ArgumentsNotRecorded) as raised:
        Arguments.load(ask, recorded)
    assert raised.value.args == (["key"],)
    other = Arguments(("other", SecretStr("new key")), {})
    again = Arguments.load(ask, recorded, given=other)
    assert (again.args, again.kwargs) == (("why?", SecretStr("new key"), None), {"depth": 3})


def test_a_digest_of_a_call_says_nothing_about_a_secret() -> None:
    digest = CallDigest(ask)
    assert digest.of(("why?", SecretStr("a")), {}) == digest.of(("why?", SecretStr("b")), {})


async def test_no_file_of_a_store_has_a_secret_argument(tmp_path: Path) -> None:
    raise_once = RaiseOnce()

    @step
    async def use(key: SecretStr) -> int:
        return len(key.get_secret_value())

    @flow
    async def asking(question: str, key: SecretStr) -> int:
        length = await use(key)
        raise_once()
        return length

    async with scripted_runtime(tmp_path, record_text=True) as runtime:
        with pytest.raises(Boom):
            await runtime.run(asking.options(run_id=ID), "why?", SecretStr(SECRET))
        with pytest.raises(RunNotResumable, match="not recorded of its arguments: key"):
            await runtime.resume(ID, asking)
        with pytest.raises(ArgumentsDiffer):
            await runtime.run(asking.options(run_id=ID), "other", SecretStr(SECRET))
        result = await runtime.run(asking.options(run_id=ID), "why?", SecretStr(SECRET))
        assert result.value == len(SECRET)
        files = list(tmp_path.iterdir())  # noqa: ASYNC240 - nothing else runs on this loop
        assert not any(SECRET.encode() in each.read_bytes() for each in files)
