"""Results of steps that other runs may use: found by the step's code, arguments and model."""

from __future__ import annotations

import functools
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from orchestrator.durability.arguments import Arguments
from orchestrator.durability.values import ValueCodec
from orchestrator.errors import ResultUnreadable
from store.errors import PayloadMissing
from store.records import StepRecord

if TYPE_CHECKING:
    from orchestrator.execution.context import LiveRun

logger = logging.getLogger("orchestrate")


@dataclass(frozen=True, slots=True)
class CacheLookup:
    """Whose results a step may use instead of its own.

    Attributes:
        key: as `cache_key` makes it.
        most_age_s: only those of runs that began at most so many seconds ago; infinity: any.
    """

    key: bytes
    max_age_s: float


async def cached_result(
    run: LiveRun, step: StepRecord, codec: ValueCodec, reuse: CacheLookup
) -> tuple[Any] | None:
    """The result that another run recorded, which is now this step's too; None without one."""
    found = await run.recorder.reusable(reuse.key, max_age_s=reuse.max_age_s)
    if found is None:
        return None
    try:
        value = codec.load(await run.recorder.result_of(found) or b"null")
        await run.recorder.step_reused(step, found)
    except (ResultUnreadable, PayloadMissing) as error:  # of other code, or removed just now
        logger.warning("%s is done again: %s", step.path, error)
        return None
    return (value,)


def require_cacheable(body: Callable[..., Any]) -> None:
    """Raise ValueError for what may do something else under the same code and arguments."""
    if not inspect.isfunction(body):
        raise ValueError(f"cache= is for functions; {body!r} holds more than its arguments")
    if body.__closure__:
        names = ", ".join(body.__code__.co_freevars)
        raise ValueError(f"cache= is for functions that depend on their arguments alone: {names}")


def cache_key(
    body: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, model: str
) -> bytes:
    """Under which the result of a call is found again, 32 bytes: another code, another argument
    or another model makes it another one. Code that the body calls is not looked at.

    Raises:
        ResultNotSerialisable: an argument cannot be recorded, and so not be compared.
    """
    digest = blake3()
    for part in (
        f"{body.__module__}:{body.__qualname__}".encode(),
        _code_of(body.__code__),
        model.encode(),
        json.dumps(json.loads(Arguments(args, kwargs).dump(body)), sort_keys=True).encode(),
    ):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


@functools.cache
def _code_of(code: CodeType) -> bytes:
    """What a function does, as it is compiled; where it stands in its file is none of it."""
    digest = blake3(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        is_code = isinstance(constant, CodeType)
        part = _code_of(constant) if is_code else _shown(constant)
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _shown(constant: object) -> bytes:
    """A constant as text that is the same in every process: sets have an order of their own."""
    if isinstance(constant, frozenset):
        return repr(sorted(map(repr, constant))).encode()
    return repr(constant).encode()
