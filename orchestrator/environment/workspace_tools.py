"""Tools that work in a workspace: which one, and what is recorded of that."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.durability.values import ValueCodec, hints_of
from orchestrator.environment.errors import NoWorkspace
from orchestrator.environment.history import COMPENSATE, Compensate, Moment
from orchestrator.environment.position import Position
from orchestrator.environment.workspace import Workspace, current_workspace
from orchestrator.execution.calls import run_tool_call
from orchestrator.execution.context import CallContext, current_context_or_none, using_context
from orchestrator.execution.step_execution import StepSpec
from store.records import Effects, StepKind

_NOTHING = ValueCodec("nothing", None)


def workspace_parameter(function: Callable[..., Any]) -> str | None:
    """The name of a function's parameter that takes a Workspace; None if it has none."""
    try:
        hints = hints_of(function)
    except Exception:  # an annotation that cannot be read is none of ours
        return None
    names = [name for name, hint in hints.items() if name != "return" and _is_workspace(hint)]
    return names[0] if names else None


def _is_workspace(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_is_workspace(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Annotated:
        return _is_workspace(typing.get_args(hint)[0])
    return isinstance(hint, type) and issubclass(hint, Workspace)


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A call of a tool with the workspace that it works in.

    Attributes:
        workspace: None: it is called outside of any.
        is_given: whether the tool itself gets it; else it may only act beside it.
    """

    function: Callable[..., Awaitable[Any]]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    workspace: Workspace | None
    parameter: str | None

    @classmethod
    def bind(
        cls,
        function: Callable[..., Awaitable[Any]],
        parameter: str | None,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> BoundCall:
        """The call; without a given workspace it works in the current one.

        Raises:
            NoWorkspace: the tool takes one, none is given, and there is no current one.
        """
        current = current_workspace()
        if parameter is None:
            return cls(function, tuple(args), kwargs, current, None)
        given = _given(function, parameter, args, kwargs)
        if given is None:
            given, kwargs = current, {**kwargs, parameter: current}
        if given is None:
            raise NoWorkspace(name)
        return cls(function, tuple(args), kwargs, given, parameter)

    async def __call__(self) -> Any:
        """Call the function."""
        return await self.function(*self.args, **self.kwargs)

    async def repeat(self, position: Position) -> Any:
        """Call it again, in a workspace that is in the state before."""
        if self.parameter is None:
            return await self()
        args, kwargs = _with_workspace(self, position.workspace)
        return await self.function(*args, **kwargs)


async def run_within(
    context: CallContext | None, spec: StepSpec, call: BoundCall, compensate: Compensate | None
) -> Any:
    """Call a tool with an effect on the outside world as a part of an action of its workspace."""
    workspace = call.workspace
    assert workspace is not None, "it is called in one"
    moment = Moment("", spec.name, workspace.state, Effects.EXTERNAL, compensate=compensate)
    if context is None:
        with _noting(workspace, moment):
            return await call()

    async def work(here: CallContext) -> Any:
        with _noting(workspace, replace(moment, path=here.step_path.text)), using_context(here):
            return await call()

    spec = replace(spec, workspace=workspace.name, state_before=workspace.state)
    return await run_tool_call(context, spec, work)


@contextmanager
def _noting(workspace: Workspace, moment: Moment) -> Iterator[None]:
    """The block has the effect, and may have had it if it is cut off; an error says that not."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        workspace.position.note_effect(moment)
        raise
    workspace.position.note_effect(moment)


def compensation(
    name: str, compensate: Callable[..., Awaitable[Any]], call: BoundCall, arguments: bytes | None
) -> Callable[[], Awaitable[None]]:
    """Takes back what a call did outside, once: as a recorded call of its own."""

    async def take_back() -> None:
        context = current_context_or_none()

        async def work(here: CallContext) -> None:
            with using_context(here):
                await compensate(*call.args, **call.kwargs)

        if context is None:
            await compensate(*call.args, **call.kwargs)
            return
        assert call.workspace is not None, "effects are taken back in a workspace"
        spec = StepSpec(
            f"{COMPENSATE}{name}",
            StepKind.TOOL,
            _NOTHING,
            Effects.EXTERNAL,
            arguments=arguments,
            workspace=call.workspace.name,
            state_before=call.workspace.state,
        )
        await run_tool_call(context, spec, work)

    return take_back


def _given(
    function: Callable[..., Any], parameter: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Workspace | None:
    try:
        bound = inspect.signature(function).bind_partial(*args, **kwargs)
    except TypeError:  # the call itself will raise a clearer error
        return None
    given = bound.arguments.get(parameter)
    return given if isinstance(given, Workspace) else None


def _with_workspace(
    call: BoundCall, workspace: Workspace
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    bound = inspect.signature(call.function).bind(*call.args, **call.kwargs)
    assert call.parameter is not None
    bound.arguments[call.parameter] = workspace
    return bound.args, bound.kwargs
