"""The text of an LLM call: to its caller, to the run's listeners for text, and as far as taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, cast

from orchestrator.events import TextGenerated
from orchestrator.execution.context import LiveRun
from serving.generation import Chunk, Completion, Engine, GenerationRequest, Usage

OnText = Callable[[str], None]


class CallText:
    """Passes on the text of one call.

    Args:
        node, path: of the call.
        on_text: the caller's; None: it takes the whole answer only.
    """

    def __init__(self, run: LiveRun, node: int, path: str, on_text: OnText | None) -> None:
        self._run = run
        self._node = node
        self._path = path
        self._on_text = on_text
        self._passed_on: list[str] = []

    async def generate(self, engine: Engine, request: GenerationRequest) -> Completion:
        """The engine's answer, whose text is passed on as it arrives, if anybody wants it.

        Listeners that have come meanwhile get the whole text at the end.
        """
        if isinstance(self._on_text, TextTaken):
            self._on_text.path, self._on_text.node = self._path, self._node
        is_published = self._run.text_listener() is not None
        if is_published or self._on_text is not None:
            completion = await self._stream(engine, request, is_published)
        else:
            completion = await engine.generate(request)
        if not is_published:
            self._publish(completion.text)
        return completion

    @asynccontextmanager
    async def recorded_with_error(self, outcome: dict[str, Any]) -> AsyncIterator[None]:
        """A block in which the call may fail: what the flow has got then belongs to its outcome.

        An error of the engine comes to a flow that takes pieces after the last of them. A limit or
        a cancellation comes at once.
        """
        taken = self._on_text if isinstance(self._on_text, TextTaken) else None
        try:
            try:
                yield
            except Exception:
                if taken is not None:
                    outcome["ended_at_s"] = self._run.clock.now_s()
                    await taken.until_taken()
                raise
        except BaseException:
            passed_on = "".join(self._passed_on)
            outcome["text_before_error"] = passed_on if taken is None else taken.taken
            raise

    def replay(self, text: str) -> None:
        """Pass on a recorded text."""
        self._publish(text)
        if self._on_text is not None and text:
            self._on_text(text)

    async def _stream(
        self, engine: Engine, request: GenerationRequest, is_published: bool
    ) -> Completion:
        completion: Completion | None = None
        stream = cast("AsyncGenerator[Chunk]", engine.stream(request))
        async with aclosing(stream):  # so that the request is aborted at once if on_text raises
            async for chunk in stream:
                if is_published:
                    self._publish(chunk.text)
                if self._on_text is not None and chunk.text:
                    self._passed_on.append(chunk.text)
                    self._on_text(chunk.text)
                completion = chunk.completion
        assert completion is not None, "a stream ends in a completion or an error"
        return completion

    def _publish(self, piece: str) -> None:
        listener = self._run.text_listener()
        if listener is not None and piece:
            at_s = self._run.since_start_s()
            listener(TextGenerated(self._run.id, self._node, self._path, piece, at_s))


class TextTaken:
    """The pieces of an answer that a flow takes one by one; an `on_text`, which keeps them for it.

    A resumed run must find the text that the flow has seen. So the call's outcome is recorded once
    the flow has taken all pieces, or has left: then with those that it took.

    Attributes:
        pieces: those that have come and are not taken yet.
        is_left: whether the flow takes no more; its call is then cancelled.
        changed: set whenever a piece has come or is taken.
        path, node: of the call's step, and of the call; None: it has not begun, or is replayed.
        reads_on: called if the flow asks for more than there is.
    """

    def __init__(self) -> None:
        self.pieces: deque[str] = deque()
        self._taken: list[str] = []
        self.is_left = False
        self.changed = asyncio.Event()
        self.path: str | None = None
        self.node: int | None = None
        self.reads_on: Callable[[], None] = lambda: None

    @property
    def taken(self) -> str:
        """The text of the pieces that the flow has taken."""
        return "".join(self._taken)

    def __call__(self, piece: str) -> None:
        """The next piece has come."""
        self.pieces.append(piece)
        self.changed.set()

    def take(self) -> str:
        """The flow takes the next piece."""
        piece = self.pieces.popleft()
        self._taken.append(piece)
        self.changed.set()
        return piece

    async def until_taken(self) -> None:
        """Wait until the flow has taken all pieces."""
        while self.pieces:
            self.changed.clear()
            await self.changed.wait()


@contextmanager
def part_if_left(
    on_text: OnText | None, outcome: dict[str, Any], usage_of: Callable[[str], Usage]
) -> Iterator[None]:
    """If the flow leaves an answer in this block, the outcome is the part that it has taken.

    Args:
        usage_of: counts the tokens of a call with this part.
    """
    try:
        yield
    except asyncio.CancelledError:
        if isinstance(on_text, TextTaken) and on_text.is_left:
            part = on_text.taken
            outcome["part"] = Completion("", part, "length", usage_of(part), 0.0, 0.0)
        raise


def estimate_usage(prompt: str, part: str) -> Usage:
    """The tokens of a prompt and of a part of its answer, estimated from the lengths of the texts.

    An engine counts the tokens of an answer at its end only.
    """
    from serving.analyzer.words import estimate_prompt_tokens  # it needs NumPy

    return Usage(estimate_prompt_tokens(prompt), estimate_prompt_tokens(part))
