"""Step cache: reuses results of other runs, keyed by the step's code, arguments and model."""

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
    """The key and the age limit by which a step looks for a cached result.

    Attributes:
        key: as `cache_key` makes it.
        max_age_s: seconds since the start of the run that made the result; infinity: any.
    """

    key: bytes
    max_age_s: float


async def cached_result(
    run: LiveRun, step: StepRecord, codec: ValueCodec, lookup: CacheLookup
) -> tuple[Any] | None:
    """The result of another run, now recorded as this step's too, in a tuple; None without one."""
    source = await run.recorder.find_reusable(lookup.key, max_age_s=lookup.max_age_s)
    if source is None:
        return None
    try:
        value = codec.load(await run.recorder.data.result_of(source) or b"null")
        await run.recorder.step_reused(step, source)
    except (ResultUnreadable, PayloadMissing) as error:  # other code made it, or it was deleted
        logger.warning("the cached result of %s is not used: %s", step.path, error)
        return None
    return (value,)


def require_cacheable(body: Callable[..., Any]) -> None:
    """Raise ValueError if a step's result may depend on more than its code and arguments."""
    if not inspect.isfunction(body):
        raise ValueError(f"cache= needs a plain function; {body!r} may hold state of its own")
    if body.__closure__:
        names = ", ".join(body.__code__.co_freevars)
        raise ValueError(
            f"cache= needs a function that depends on its arguments alone; pass these variables"
            f" of the function around it as arguments: {names}"
        )


def cache_key(
    body: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, model: str
) -> bytes:
    """The cache key of a call, 32 bytes: a hash of the step's code, its arguments and the model.

    Code that the body calls is not included.

    Raises:
        ResultNotSerialisable: an argument cannot be recorded, and so cannot be compared.
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
    """A hash of a function's compiled code, without its position in the file."""
    digest = blake3(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames)).encode())
    digest.update(_layout_of(code))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            part = b"%d" % constant.co_argcount + _code_of(constant)
        else:
            part = _repr_of(constant)
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _layout_of(code: CodeType) -> bytes:
    """What the instructions leave out: kinds of parameters, cells, the ranges of handlers.

    Nothing for a function with simple parameters alone: its key is as in former versions.
    """
    kinds = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    layout = (
        (kinds, code.co_posonlyargcount, code.co_kwonlyargcount),
        (code.co_cellvars, code.co_freevars),
        code.co_exceptiontable,
    )
    is_simple = layout == ((0, 0, 0), ((), ()), b"")
    return b"" if is_simple else repr((code.co_argcount, *layout)).encode()


def _repr_of(constant: object) -> bytes:
    """A constant's repr, the same in every process: the items of a set are sorted."""
    if isinstance(constant, frozenset):
        return repr(sorted(map(repr, constant))).encode()
    return repr(constant).encode()
