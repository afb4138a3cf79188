"""llm_stream: an LLM call whose answer is read piece by piece, as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextvars import copy_context
from types import TracebackType
from typing import Any, Unpack

from orchestrator.cancellation import end_all, until_ended
from orchestrator.execution.call_text import TextTaken
from orchestrator.execution.causality import frontier, stand_in_for
from orchestrator.execution.context import (
    CallContext,
    current_context,
    current_worker,
    set_context,
)
from orchestrator.sdk.llm import Sampling, llm
from orchestrator.sdk.prompts import Prompt


def llm_stream(prompt: Prompt, **arguments: Unpack[Sampling]) -> AsyncGenerator[str, None]:
    """Call the run's model as `llm` does, and iterate over the pieces of the answer's text.

    The call is recorded as one of `llm`; a resumed run gets the recorded text in one piece. If the
    loop is left early, the call is aborted in the engine and recorded as cancelled, with the text
    that was read: a resumed run gets just that.

    Args:
        prompt: as of `llm`.
        arguments: those of `llm`, without `schema`, `logprobs`, `n` and `on_text`.
    Raises:
        TypeError: another argument, at once. The first piece raises what `llm` raises, a later one
            what ends the call.
        FlowChanged: a resumed run reads on where it had left the loop before.
    """
    if unknown := arguments.keys() - Sampling.__optional_keys__:
        raise TypeError(f"llm_stream() takes no argument {', '.join(sorted(unknown))}")
    return _AnswerStream(prompt, arguments)


class _AnswerStream(AsyncGenerator[str, None]):
    """The pieces of one answer. The call begins with the first one, in a task of its own.

    Not an async generator function, since code must run at once when a loop is left by `break`.
    """

    def __init__(self, prompt: Prompt, arguments: Sampling) -> None:
        self._prompt = prompt
        self._arguments = arguments
        self._call: _Call | None = None
        self._is_read = False
        self._is_over = False

    async def asend(self, value: None, /) -> str:
        """The next piece."""
        if self._is_read:
            raise RuntimeError("llm_stream() is read by another task")
        if self._is_over:
            raise StopAsyncIteration
        self._is_read = True
        try:
            if self._call is None:
                self._call = _Call(self._prompt, self._arguments)
            return await self._call.next_piece()
        except BaseException:
            self._is_over = True
            raise
        finally:
            self._is_read = False

    async def athrow(
        self,
        error: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
        /,
    ) -> str:
        """End the call, and raise the error."""
        await self.aclose()
        if isinstance(error, BaseException):
            raise error
        raise value if isinstance(value, BaseException) else error()

    async def aclose(self) -> None:
        """End the call; returns once its end is recorded."""
        self._is_over = True
        if self._call is not None:
            self._call.leave()
            await until_ended([self._call.task])

    def __del__(self) -> None:
        if self._call is not None:
            self._call.leave_from_any_thread()


class _Call:
    """The call in its task, which does not know this object: a loop that is left drops it."""

    def __init__(self, prompt: Prompt, arguments: Sampling) -> None:
        self._here = current_context("llm_stream()")
        self._loop = asyncio.get_running_loop()
        self._text = text = TextTaken()
        self._context = copy_context()
        self._reader = asyncio.current_task()
        self.task: asyncio.Task[str] = self._loop.create_task(
            _in_own_task(self._here, self._reader, prompt, arguments, text),
            context=self._context,
        )
        streams = self._here.run.streams
        streams.add(self.task)
        self.task.add_done_callback(streams.discard)
        self.task.add_done_callback(lambda _: text.changed.set())
        self.task.add_done_callback(_retrieve)

    async def next_piece(self) -> str:
        """The next piece of text; raises what ended the call, or StopAsyncIteration."""
        text = self._text
        try:
            while not (text.pieces or self.task.done()):
                text.changed.clear()
                await text.changed.wait()
        except BaseException:  # the reader was cancelled
            await end_all([self.task])
            self._come_after()
            raise
        self._go_on_after()
        if text.pieces:
            return text.take()
        self.task.result()
        self._come_after()
        text.reads_on()
        raise StopAsyncIteration

    def leave(self) -> None:
        """Abort the call, unless it has ended.

        What the flow has read is its outcome, if the flow left by itself. If the flow is cancelled
        or out of time, a resumed run makes the call again.
        """
        if asyncio.current_task() is self._reader:  # not if the garbage collector leaves
            self._come_after()
        if self.task.done():
            return
        if not _is_cut_off(self._here):
            self._text.is_left = True
            left = self._here.run.left
            left.add(self.task)
            self.task.add_done_callback(left.discard)
            if self._text.path is not None:  # before the outcomes of what the flow does next
                self._here.run.recorder.order.number(self._text.path)
        self.task.cancel()

    def leave_from_any_thread(self) -> None:
        """Leave, when the garbage collector has found that nobody reads on."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self.leave()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.task.cancel)

    def _come_after(self) -> None:
        """What the reader does next depends on the call, even if that is about to be cut off."""
        nodes = self._context.run(frontier)
        if not self.task.done() and self._text.node is not None:
            nodes |= {self._text.node}
        self._here.run.causality.join([nodes])

    def _go_on_after(self) -> None:
        """Let the reader's code go on as after a call of its own, once the call has begun."""
        there = self._context.run(current_context, "llm_stream()")
        if there.step_path is not self._here.step_path:  # it was the first step of its task
            # Not the deadline of the call's own, which may be shorter.
            self._here = self._here.derive(step_path=there.step_path, owner=current_worker())
            set_context(self._here)


async def _in_own_task(
    here: CallContext,
    reader: asyncio.Task[Any] | None,
    prompt: Prompt,
    arguments: Sampling,
    text: TextTaken,
) -> str:
    """Make the call as if it were the reader's task that makes it."""
    if here.owner is reader:
        set_context(here.derive(owner=current_worker()))
    stand_in_for(reader)
    return await llm(prompt, **arguments, on_text=text)


def _is_cut_off(here: CallContext) -> bool:
    """Whether code is cancelled or out of time here, rather than ending something by itself."""
    task = asyncio.current_task()
    return (
        (task is not None and task.cancelling() > 0)
        or here.run.was_cancelled()
        or here.remaining_s() <= 0
        or any(budget.is_exceeded for budget in here.budgets)
    )


def _retrieve(task: asyncio.Task[str]) -> None:
    """Read a task's error, so that asyncio does not log it if the loop was left meanwhile."""
    if not task.cancelled():
        task.exception()
