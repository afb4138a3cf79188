"""flow: a decorator for functions that execute as recorded runs, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, ParamSpec, Protocol, TypeVar, get_args, overload

from orchestrator.durability.digests import CallDigest
from orchestrator.durability.identity import checked_name
from orchestrator.durability.values import result_codec
from orchestrator.durations import Duration, seconds_of
from orchestrator.execution.context import CallContext, current_context_or_none
from orchestrator.execution.deadline_handling import (
    DeadlineHandling,
    OnDeadline,
    run_by_own_deadline,
)
from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.execution.step_execution import StepSpec, run_step
from orchestrator.kept_runtime import shared_runtime
from orchestrator.learning.feasibility import Infeasible
from orchestrator.runtime.handle import RunHandle
from orchestrator.runtime.results import RunResult
from orchestrator.runtime.submission import Submitted
from orchestrator.sdk.functions import awaitable, name_of, require_no_method
from store.records import StepKind

P = ParamSpec("P")
R = TypeVar("R")


class Flow(FlowSpec[P, R]):
    """An async function that executes as a recorded run, with a deadline.

    Awaited inside another flow it is a step of that flow's run, and its deadline can only be
    earlier than the run's. Elsewhere it is a run of its own, in the open runtime, or in one that
    stays open until the event loop ends.
    """

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the flow and return its result; raises what its body raises."""
        context = current_context_or_none()
        if context is not None:
            return await self._run_as_step(context, args, kwargs)
        return (await self.run(*args, **kwargs)).value

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> RunResult[R]:
        """Execute it as a run of its own, and return the RunResult; see Runtime.run.

        The run uses the open runtime; without one it opens one, which stays open for later runs
        until the event loop ends.
        """
        async with shared_runtime() as runtime:
            return await runtime.run(self, *args, **kwargs)

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a run of its own in the background, as `run`; returns its handle."""
        async with AsyncExitStack() as resources:
            runtime = await resources.enter_async_context(shared_runtime())
            handle = runtime.begin(self, args, kwargs, release=resources.pop_all().aclose)
            await asyncio.sleep(0)  # let the task start: cancelled before, it would release nothing
            return handle

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Submitted:
        """Submit a run to a queue, where a worker takes it; see `queued` and Runtime.submit."""
        async with shared_runtime() as runtime:
            return await runtime.submit(self, *args, **kwargs)

    async def resume(
        self,
        run_id: str,
        *,
        deadline: Duration | None = None,
        allow_changed: bool = False,
    ) -> RunResult[R]:
        """Resume a run of this flow; see Runtime.resume."""
        async with shared_runtime() as runtime:
            return await runtime.resume(
                run_id, self, deadline=deadline, allow_changed=allow_changed
            )

    async def fork(
        self,
        run_id: str,
        *,
        at: str,
        new_id: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        deadline: Duration | None = None,
        allow_effects: bool = False,
    ) -> RunResult[R]:
        """Fork a run of this flow at a step; see Runtime.fork."""
        async with shared_runtime() as runtime:
            return await runtime.fork(
                run_id,
                self,
                at=at,
                new_id=new_id,
                arguments=arguments,
                deadline=deadline,
                allow_effects=allow_effects,
            )

    async def _run_as_step(self, context: CallContext, args: Any, kwargs: Any) -> R:
        async def work(here: CallContext) -> R:
            async def body() -> R:
                value = await self.body(*args, **kwargs)
                # Here, as a flow that its deadline cuts off need not have begun all recorded steps.
                here.run.recorded_steps.require_no_more(here.step_path)
                return value

            return await run_by_own_deadline(
                here, self.name, self.deadline_s, self.deadline_handling, body
            )

        codec = result_codec(self.body, f"flow {self.name}")
        arguments = CallDigest(self.body).of(args, kwargs)
        spec = StepSpec(self.name, StepKind.STEP, codec, arguments=arguments)
        return await run_step(context, spec, work, is_whole=False)


@overload
def flow(body: Callable[P, Awaitable[R]], /) -> Flow[P, R]: ...


@overload
def flow(body: Callable[P, R], /) -> Flow[P, R]: ...


@overload
def flow(
    *,
    deadline: Duration | None = None,
    on_deadline: OnDeadline | None = None,
    wrap_up: Callable[[Any], Awaitable[Any]] | None = None,
    tail: Duration | None = None,
    infeasible: Infeasible = "warn",
    stages: int | None = None,
    name: str | None = None,
) -> FlowDecorator: ...


def flow(
    body: Callable[..., Any] | None = None,
    /,
    *,
    deadline: Duration | None = None,
    on_deadline: OnDeadline | None = None,
    wrap_up: Callable[[Any], Awaitable[Any]] | None = None,
    tail: Duration | None = None,
    infeasible: Infeasible = "warn",
    stages: int | None = None,
    name: str | None = None,
) -> Any:
    """Make a function a flow. A plain function (not async) runs in a thread.

    Args:
        deadline: end to end, from the start of the run ("60s", or seconds); None: none.
        on_deadline: "fail": raise DeadlineExceeded; "wrap_up": return what `wrap_up` returns;
            "best_so_far": return the last value given to best_so_far(). The default is "wrap_up"
            with `wrap_up`, else "fail".
        wrap_up: called shortly before the deadline, with the last value given to best_so_far()
            (None without one); returns the flow's result.
        tail: how much of the deadline is reserved for `wrap_up` ("5s"); None: a tenth.
        infeasible: what happens if the deadline is shorter than every past run: "warn" logs a
            warning and runs, "fail" raises DeadlineInfeasible before the run starts.
        stages: number of stages of calls that a run is expected to have; used until past runs are
            known.
        name: under which runs are recorded; the function's own name by default.
    Raises:
        InvalidDuration: the deadline or the tail is not a positive time.
        TypeError: the function is a method or a generator.
        ValueError: on_deadline or infeasible is unknown, on_deadline and wrap_up do not fit
            together, or the name cannot be stored.
    """
    if infeasible not in get_args(Infeasible):
        choices = " or ".join(map(repr, get_args(Infeasible)))
        raise ValueError(f"infeasible={infeasible!r} must be {choices}")
    deadline_handling = DeadlineHandling(
        on_deadline or ("fail" if wrap_up is None else "wrap_up"),
        wrap_up and awaitable(wrap_up),
        None if tail is None else seconds_of(tail),
    )

    def decorate(body: Callable[P, Any]) -> Flow[P, Any]:
        require_no_method(body)
        return Flow(
            body=awaitable(body),
            name=checked_name(name or name_of(body)),
            deadline_s=None if deadline is None else seconds_of(deadline),
            expected_stages=stages,
            deadline_handling=deadline_handling,
            infeasible=infeasible,
        )

    return decorate if body is None else decorate(body)


class FlowDecorator(Protocol):
    """The decorator that `flow` with parameters returns."""

    @overload
    def __call__(self, body: Callable[P, Awaitable[R]], /) -> Flow[P, R]: ...

    @overload
    def __call__(self, body: Callable[P, R], /) -> Flow[P, R]: ...

    def __call__(self, body: Any, /) -> Any:
        """Make a function a flow."""
        ...
