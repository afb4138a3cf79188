"""vLLM inside this process: a thread runs the engine, and asyncio callers wait for answers."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import queue
import threading
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from serving.engine.clients.answers import (
    PendingCall,
    named_error,
    sampling_params,
    set_remaining_slo,
    structured_outputs,
)
from serving.engine.clients.prompts import Prompts
from serving.engine.clients.tool_calls import reader_for
from serving.engine.healing.restart_limit import PAUSE_S, may_restart
from serving.engine.healing.resubmission import max_submissions, until_begun, within_patience
from serving.engine.setup.config import CAVEATS, EngineConfig, vllm_platform
from serving.engine.setup.model_loading import error_summary, model_path, silence_warnings
from serving.engine.setup.model_size import num_parameters
from serving.engine.setup.random_model import has_random_weights
from serving.engine.setup.tool_formats import tool_parser_for
from serving.engine.structured_output.check import StructuredOutputCheck
from serving.errors import (
    EngineBusy,
    EngineClosed,
    EngineDied,
    InvalidRequest,
    ModelNotLoaded,
    PromptTooLong,
    ServingError,
)
from serving.generation import (
    Chunk,
    Completion,
    EngineInfo,
    GenerationRequest,
    check_request,
    last_completion,
)

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    from serving.engine.scheduler.scheduler import SloSchedulerMixin

T = TypeVar("T")

logger = logging.getLogger("orchestrate")


class _Place:
    """The place of this process's engine: vLLM supports one in a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.engine: EmbeddedEngine | None = None

    def take(self, engine: EmbeddedEngine) -> bool:
        """Take the place if it is free; returns whether it was."""
        with self._lock:
            if self.engine is not None:
                return False
            self.engine = engine
            return True

    def leave(self) -> None:
        """The engine has ended."""
        self.engine = None


_place = _Place()


class _Job(Generic[T]):
    """Work for the engine's thread, and the future that its caller waits for."""

    def __init__(self, work: Callable[[LLMEngine], T]) -> None:
        self.done: Future[T] = Future()
        self._work = work

    def run(self, llm: LLMEngine) -> None:
        """Do the work, unless its caller has cancelled it; its errors are raised in the caller."""
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            self.done.set_result(self._work(llm))
        except BaseException as error:
            self.done.set_exception(error)
            if not isinstance(error, Exception):
                raise  # such as SystemExit, which must end the thread

    def fail(self, error: ServingError) -> None:
        """End the wait with an error; does nothing if it has ended."""
        with suppress(InvalidStateError):
            self.done.set_exception(error)


def _future() -> Future[LLMEngine]:
    future: Future[LLMEngine] = Future()
    future.set_running_or_notify_cancel()  # a cancelled call must not cancel it
    return future


class _Restarting(EngineDied):
    """The engine died, and is started again."""


class EmbeddedEngine:
    """An engine in this process; several event loops may share it.

    One thread owns vLLM's LLMEngine, and runs callers' jobs between two steps. Cancelling a call
    aborts its request. If the engine dies, it is started again as often as `config.restarts`
    allows, and calls that gave out nothing are submitted again; otherwise every call fails.

    Attributes:
        may_be_closed: see EngineInProcess; by default it does not.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.may_be_closed: Callable[[], bool] = lambda: False
        self._info = EngineInfo(
            name="embedded",
            model=config.model,
            random_weights=config.is_random,
            max_model_tokens=None,
            policy=config.policy.label,
        )
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._calls: dict[str, PendingCall] = {}
        self._submissions = itertools.count()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._has_started = False
        self._starts_s: list[float] = []  # after a death
        self._ready = _future()
        self._end: ServingError | None = None
        self._prompts = Prompts()
        self._structured_output: StructuredOutputCheck | None = None  # until the engine is ready

    @property
    def info(self) -> EngineInfo:
        """Description of this engine; complete once it has started."""
        return self._info

    @property
    def has_ended(self) -> bool:
        """Whether it was closed, has died or could not be loaded; it answers no more calls."""
        return self._end is not None

    async def start(self) -> None:
        """Load the model; idempotent.

        Raises:
            EngineBusy: this process already runs an embedded engine, which does not make way.
            EngineClosed, EngineDied: it has ended.
            EngineMissing: vLLM is not installed, or not in the pinned version.
            ModelNotLoaded: the model cannot be loaded.
        """
        while self._thread is None and self._end is None:
            other = _place.engine
            if other in (None, self) or not other.may_be_closed():
                break
            await other.close()
        with self._starting:
            if self._thread is None and self._end is None:
                if not _place.take(self):
                    raise EngineBusy(self.config.model)
                self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
                self._thread.start()
        if self._end is not None:
            raise self._end
        await asyncio.wrap_future(self._ready)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Submit a request and wait for its answer; cancelling aborts it."""
        return await last_completion(self._healed(request, shows_text=False))

    def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Submit a request and yield its text as it grows; closing the iterator aborts it.

        Its SLO counts from this call, or from the end of loading if the model is not loaded yet.

        Raises:
            InvalidRequest, PromptTooLong: this engine can never run the request; of a schema, that
                it exceeds a bound or takes long to compile.
            ToolsNotSupported: it has tools, and this engine has no tool parser.
            RequestDropped: the scheduler dropped it, as its SLO asks for.
            RequestFailed: vLLM failed on it, or died of it, and still serves other requests.
            AnswerLost: the engine died within the answer, and is started again.
            EngineClosed, EngineDied: the engine ended before the request did.
        """
        return self._healed(request, shows_text=True)

    async def _healed(
        self, request: GenerationRequest, *, shows_text: bool
    ) -> AsyncIterator[Chunk]:
        check_request(request)
        _require_text(request)
        if not self._has_started:
            await self.start()
        submit = partial(self._submission, request, time.monotonic(), shows_text=shows_text)
        async with aclosing(
            until_begun(
                submit,
                request.request_id,
                death=_Restarting,
                limit=max_submissions(self.config.restarts),
            )
        ) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _submission(
        self, request: GenerationRequest, submitted_s: float, *, shows_text: bool
    ) -> AsyncGenerator[Chunk, None]:
        """The chunks of one submission; without their text only the last one."""
        loop = asyncio.get_running_loop()
        llm = await within_patience(
            self._llm(), request.request_id, request.slo, spent_s=time.monotonic() - submitted_s
        )
        await self._check_schema(request)
        thread = self._prompts.thread_for(request)
        tokens = await loop.run_in_executor(thread, self._tokens, llm, request)
        choices: list[int] = []
        if request.choices:
            tokenizer = llm.get_tokenizer()
            choices = await loop.run_in_executor(
                thread, self._prompts.choice_tokens, tokenizer, request
            )
        pending = PendingCall(request, loop, submitted_s=submitted_s, choice_tokens=choices)
        if request.tools:
            make = partial(reader_for, request, self._info, llm.get_tokenizer())
            pending.reader = await loop.run_in_executor(self._prompts.tokenizer_thread, make)
        # vLLM's outputs carry this id, so it must be unique among all submissions.
        engine_id = f"{request.request_id}.{next(self._submissions)}"
        try:
            await self.call(lambda llm: self._submit(llm, engine_id, pending, tokens))
            while True:
                answer = await pending.answers.get()
                if pending.reader is not None and isinstance(answer, Chunk):
                    read = partial(pending.reader.read, answer, shows_text=shows_text)
                    answer = await loop.run_in_executor(self._prompts.tokenizer_thread, read)
                if isinstance(answer, ServingError):
                    raise answer
                if shows_text or answer.completion is not None:
                    yield answer
                if answer.completion is not None:
                    return
        finally:
            if self._end is None:
                self._jobs.put(_Job(lambda llm: self._abort(llm, engine_id)))

    async def _llm(self) -> LLMEngine:
        await self.start()
        return await asyncio.wrap_future(self._ready)

    async def call(self, work: Callable[[LLMEngine], T]) -> T:
        """Run work on the engine's thread, between two steps, and return its result.

        Raises EngineClosed or EngineDied if the engine has ended, and the errors of the work.
        """
        await self.start()
        job = _Job(work)
        self._jobs.put(job)
        if self._end is not None:  # the thread may have ended before it read the job
            job.fail(self._end)
        return await asyncio.wrap_future(job.done)

    async def close(self) -> None:
        """End every request still running with EngineClosed, and free the model; idempotent."""
        with self._starting:
            if self._thread is None:
                self._end = EngineClosed(self.config.model)
                return
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def _check_schema(self, request: GenerationRequest) -> None:
        try:
            structured = structured_outputs(request)
        except (TypeError, ValueError) as error:
            raise named_error(request.request_id, error) from error
        assert self._structured_output is not None, "the engine is ready"
        await self._structured_output.check(structured, request.request_id)

    def _tokens(self, llm: LLMEngine, request: GenerationRequest) -> list[int]:
        """The prompt as token ids; runs on the thread that Prompts chose."""
        limit = llm.model_config.max_model_len
        return self._prompts.tokens(llm.get_tokenizer(), request, limit_tokens=limit)

    # The methods below run on the engine's thread.

    def _parameters(
        self, llm: LLMEngine, pending: PendingCall, available_tokens: int
    ) -> SamplingParams:
        """vLLM's parameters for a request (see `sampling_params`); subclasses may change them."""
        return sampling_params(pending.request, available_tokens, pending.choice_tokens)

    def _run(self) -> None:
        while self._end is None:
            self._live()
        if self._structured_output is not None:
            self._structured_output.close()

    def _live(self) -> None:
        """Load an engine, and serve calls until it ends."""
        try:
            llm = self._load()
        except BaseException as error:
            self._not_loaded(error)
            return
        self._has_started = True
        self._ready.set_result(llm)
        try:
            self._serve(llm)
        except BaseException as error:
            self._died(error)
        else:
            self._finish(EngineClosed(self.config.model))
        finally:
            try:
                _free(llm)
            finally:
                if self._end is not None:
                    _place.leave()

    def _not_loaded(self, error: BaseException) -> None:
        end = error if isinstance(error, ServingError) else EngineDied(error_summary(error))
        if self._has_started:
            end = EngineDied(f"it could not be started again: {end}")
            logger.error("%s", end)
            if isinstance(error, Exception) and self._may_restart():
                time.sleep(PAUSE_S)
                return
        _place.leave()
        self._finish(end)
        self._ready.set_exception(end)

    def _died(self, error: BaseException) -> None:
        cause = f"{type(error).__name__}: {error}"
        if not (isinstance(error, Exception) and self._may_restart()):
            self._finish(EngineDied(cause))
            return
        logger.error("the engine died, and is started again: %s", cause)
        self._ready = _future()
        self._end_calls(_Restarting(cause))

    def _may_restart(self) -> bool:
        """Whether another start is allowed, which then counts."""
        now_s = time.monotonic()
        if not may_restart(self.config.restarts, self._starts_s, now_s):
            return False
        self._starts_s.append(now_s)
        return True

    def _load(self) -> LLMEngine:
        platform = vllm_platform()
        for name, value in self.config.environment(platform).items():
            os.environ.setdefault(name, value)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine core in this process
        try:
            model = model_path(self.config)
            with warnings.catch_warnings():
                if not self.config.verbose:
                    silence_warnings()
                from vllm.engine.arg_utils import EngineArgs
                from vllm.v1.engine.llm_engine import LLMEngine

                arguments = self.config.vllm_arguments(model, platform)
                llm = LLMEngine.from_engine_args(EngineArgs(disable_log_stats=True, **arguments))
            tokenizer = llm.get_tokenizer()
            if self._structured_output is None:
                self._structured_output = StructuredOutputCheck(llm.vllm_config, tokenizer)
            model_type = str(getattr(llm.model_config.hf_config, "model_type", ""))
            asked, name = self.config.tool_parser, self.config.model
            tool_parser = tool_parser_for(asked, name, model_type, tokenizer)
        except ServingError:
            raise
        except Exception as error:
            raise ModelNotLoaded(self.config.model, error_summary(error)) from error
        self._info = EngineInfo(
            name="embedded",
            model=self.config.model,
            random_weights=has_random_weights(model),
            max_model_tokens=llm.model_config.max_model_len,
            scheduler=type(scheduler_of(llm)).__name__,
            policy=self.config.policy.label,
            caveat=CAVEATS.get(self.config.model, ""),
            parameters=num_parameters(self.config.model, model),
            tool_parser=tool_parser,
        )
        return llm

    def _serve(self, llm: LLMEngine) -> None:
        while True:
            while not (llm.has_unfinished_requests() and self._jobs.empty()):
                job = self._jobs.get()
                if job is None:
                    return
                job.run(llm)
            for output in llm.step():
                pending = self._calls.get(output.request_id)
                if pending is None:
                    continue  # a request that a job added
                if output.finished:
                    del self._calls[output.request_id]
                pending.deliver(pending.take(output))

    def _submit(
        self, llm: LLMEngine, engine_id: str, pending: PendingCall, tokens: list[int]
    ) -> None:
        request = pending.request
        limit = llm.model_config.max_model_len
        if len(tokens) >= limit:
            raise PromptTooLong(request.request_id, len(tokens), limit - 1)
        try:
            params = self._parameters(llm, pending, limit - len(tokens))
            if pending.reader is not None:
                pending.reader.adjust(params)
            prompt = {"prompt_token_ids": tokens}
            set_remaining_slo(params, request.slo, time.monotonic() - pending.submitted_s)
            llm.add_request(engine_id, prompt, params, priority=request.priority)
        except Exception as error:  # of any class: it must not end the other requests
            llm.abort_request([engine_id])  # parts of vLLM may have the request already
            raise named_error(request.request_id, error) from error
        self._calls[engine_id] = pending

    def _abort(self, llm: LLMEngine, engine_id: str) -> None:
        if self._calls.pop(engine_id, None) is not None:
            llm.abort_request([engine_id])

    def _finish(self, end: ServingError) -> None:
        """Fail all waiting and all future calls."""
        self._end = end
        self._end_calls(end)
        with suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job.fail(end)

    def _end_calls(self, error: ServingError) -> None:
        for pending in self._calls.values():
            pending.deliver(error)
        self._calls.clear()


def _require_text(request: GenerationRequest) -> None:
    """Refuse images: they are not passed on to vLLM here."""
    turns = () if isinstance(request.prompt, str) else request.prompt
    if any(turn.has_images for turn in turns):
        reason = (
            "an embedded engine reads no images: name a server of a model that does as an engine"
            " (ORCHESTRATE_ENGINES), and call it with engine="
        )
        raise InvalidRequest(request.request_id, reason)


def scheduler_of(llm: LLMEngine) -> SloSchedulerMixin:
    """The scheduler of an in-process engine; use it on the engine's thread only."""
    scheduler: SloSchedulerMixin = llm.engine_core.engine_core.scheduler
    return scheduler


def _free(llm: LLMEngine) -> None:
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    llm.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    gc.collect()
