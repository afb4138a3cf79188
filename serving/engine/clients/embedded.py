"""vLLM inside this process: one thread steps the engine, asyncio callers wait in front of it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import queue
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from serving.engine.clients.answers import Caller, promise_what_is_left, refusal, sampling_params
from serving.engine.clients.prompts import Prompts
from serving.engine.setup.config import EngineConfig, vllm_platform
from serving.engine.setup.demo_model import has_random_weights
from serving.engine.setup.model_loading import model_path, quieten, telling_line
from serving.errors import (
    EngineBusy,
    EngineClosed,
    EngineDied,
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

_one_engine = threading.Lock()  # vLLM takes one in-process engine in a process


class _Job(Generic[T]):
    """Work for the engine's thread, and the future in which its caller waits."""

    def __init__(self, work: Callable[[LLMEngine], T]) -> None:
        self.done: Future[T] = Future()
        self._work = work

    def run(self, llm: LLMEngine) -> None:
        """Do the work, unless its caller is gone; its errors are the caller's."""
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            self.done.set_result(self._work(llm))
        except BaseException as error:
            self.done.set_exception(error)
            if not isinstance(error, Exception):
                raise  # it was meant for the thread

    def fail(self, error: ServingError) -> None:
        """End the wait with an error; nothing happens if it ended already."""
        with suppress(InvalidStateError):
            self.done.set_exception(error)


class EmbeddedEngine:
    """An engine in this process; several event loops may share it.

    vLLM's LLMEngine belongs to one thread, which runs what callers hand it between two steps.
    A caller that is cancelled aborts its request; an engine that dies fails every caller.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._info = EngineInfo(
            name="embedded",
            model=config.model,
            random_weights=config.is_demo,
            max_model_tokens=None,
            policy=config.policy.label,
        )
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._callers: dict[str, Caller] = {}
        self._submissions = itertools.count()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ready: Future[LLMEngine] = Future()
        self._ready.set_running_or_notify_cancel()  # a cancelled caller must not cancel it
        self._end: ServingError | None = None
        self._prompts = Prompts()

    @property
    def info(self) -> EngineInfo:
        """What this engine is; complete once it has started."""
        return self._info

    async def start(self) -> None:
        """Load the model; idempotent.

        Raises:
            EngineBusy: this process already runs an embedded engine.
            EngineClosed, EngineDied: it has ended.
            EngineMissing: vLLM is not installed as needed.
            ModelNotLoaded: the model cannot be loaded.
        """
        with self._starting:
            if self._thread is None and self._end is None:
                if not _one_engine.acquire(blocking=False):
                    raise EngineBusy(self.config.model)
                self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
                self._thread.start()
        if self._end is not None:
            raise self._end
        await asyncio.wrap_future(self._ready)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Submit a request and wait for its answer; cancelling aborts it."""
        return await last_completion(self.stream(request))

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Submit a request and yield its text as it grows; closing the iterator aborts it.

        Its promise counts from here on, or from when the model is loaded.

        Raises:
            InvalidRequest, PromptTooLong: the request can never run here.
            RequestDropped: the scheduler gave it up, as its SLO asked.
            RequestFailed: vLLM failed on it, and goes on with the others.
            EngineClosed, EngineDied: the engine ended first.
        """
        check_request(request)
        was_ready, submitted_s = self._ready.done(), time.monotonic()
        await self.start()
        if not was_ready:
            submitted_s = time.monotonic()
        loop = asyncio.get_running_loop()
        llm = self._ready.result()
        thread = self._prompts.thread_for(request)
        tokens = await loop.run_in_executor(thread, self._tokens, llm, request)
        caller = Caller(request, loop, submitted_s=submitted_s)
        # vLLM reports by the id that it was given, so each submission needs one of its own.
        engine_id = f"{request.request_id}.{next(self._submissions)}"
        try:
            await self.call(lambda llm: self._submit(llm, engine_id, caller, tokens))
            while True:
                answer = await caller.answers.get()
                if isinstance(answer, ServingError):
                    raise answer
                yield answer
                if answer.completion is not None:
                    return
        finally:
            if self._end is None:
                self._jobs.put(_Job(lambda llm: self._abort(llm, engine_id)))

    async def call(self, work: Callable[[LLMEngine], T]) -> T:
        """Run work on the engine's own thread, between two steps, and return its result.

        Raises EngineClosed or EngineDied if the engine has ended, and what the work raises.
        """
        await self.start()
        job = _Job(work)
        self._jobs.put(job)
        if self._end is not None:  # perhaps before it could see the job
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

    def _tokens(self, llm: LLMEngine, request: GenerationRequest) -> list[int]:
        """The prompt as token ids; on the thread for it."""
        limit = llm.model_config.max_model_len
        return self._prompts.tokens(llm.get_tokenizer(), request, limit_tokens=limit)

    # What follows runs on the engine's thread.

    def _parameters(
        self, llm: LLMEngine, request: GenerationRequest, room_tokens: int
    ) -> SamplingParams:
        """vLLM's parameters; `room_tokens` is what the prompt leaves of the context."""
        return sampling_params(request, room_tokens)

    def _run(self) -> None:
        try:
            llm = self._load()
        except BaseException as error:
            end = error if isinstance(error, ServingError) else EngineDied(telling_line(error))
            _one_engine.release()
            self._finish(end)
            self._ready.set_exception(end)
            return
        self._ready.set_result(llm)
        try:
            self._serve(llm)
        except BaseException as error:
            self._finish(EngineDied(f"{type(error).__name__}: {error}"))
        else:
            self._finish(EngineClosed(self.config.model))
        finally:
            try:
                _free(llm)
            finally:
                _one_engine.release()

    def _load(self) -> LLMEngine:
        platform = vllm_platform()
        for name, value in self.config.environment(platform).items():
            os.environ.setdefault(name, value)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine core in this process
        try:
            model = model_path(self.config)
            with warnings.catch_warnings():
                if not self.config.verbose:
                    quieten()
                from vllm.engine.arg_utils import EngineArgs
                from vllm.v1.engine.llm_engine import LLMEngine

                arguments = self.config.vllm_arguments(model, platform)
                llm = LLMEngine.from_engine_args(EngineArgs(disable_log_stats=True, **arguments))
        except ServingError:
            raise
        except Exception as error:
            raise ModelNotLoaded(self.config.model, telling_line(error)) from error
        self._info = EngineInfo(
            name="embedded",
            model=self.config.model,
            random_weights=has_random_weights(model),
            max_model_tokens=llm.model_config.max_model_len,
            scheduler=type(scheduler_of(llm)).__name__,
            policy=self.config.policy.label,
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
                caller = self._callers.get(output.request_id)
                if caller is None:
                    continue  # a job's own request
                if output.finished:
                    del self._callers[output.request_id]
                caller.answer(caller.take(output))

    def _submit(self, llm: LLMEngine, engine_id: str, caller: Caller, tokens: list[int]) -> None:
        request = caller.request
        limit = llm.model_config.max_model_len
        if len(tokens) >= limit:
            raise PromptTooLong(request.request_id, len(tokens), limit - 1)
        try:
            params = self._parameters(llm, request, limit - len(tokens))
            prompt = {"prompt_token_ids": tokens}
            promise_what_is_left(params, request.slo, time.monotonic() - caller.submitted_s)
            llm.add_request(engine_id, prompt, params, priority=request.priority)
        except Exception as error:  # this request's, whatever it is: the others go on
            llm.abort_request([engine_id])  # whatever part of vLLM has it already
            raise refusal(request.request_id, error) from error
        self._callers[engine_id] = caller

    def _abort(self, llm: LLMEngine, engine_id: str) -> None:
        if self._callers.pop(engine_id, None) is not None:
            llm.abort_request([engine_id])

    def _finish(self, end: ServingError) -> None:
        """Fail every caller that still waits, and every one to come."""
        self._end = end
        for caller in self._callers.values():
            caller.answer(end)
        self._callers.clear()
        with suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job.fail(end)


def scheduler_of(llm: LLMEngine) -> SloSchedulerMixin:
    """The scheduler of an in-process engine; use it on the engine's thread only."""
    scheduler: SloSchedulerMixin = llm.engine_core.engine_core.scheduler
    return scheduler


def _free(llm: LLMEngine) -> None:
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    llm.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    gc.collect()
