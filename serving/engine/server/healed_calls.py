"""Calls of vLLM's engine that survive its death: they wait for it, and are submitted again."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from serving.engine.healing.resubmission import max_submissions, until_begun, within_patience
from serving.engine.server.responses import failure
from serving.engine.server.slo_middleware import record_error
from serving.errors import AnswerLost, EngineClosed, EngineDied, RequestFailed, lost_message
from serving.slo import BEST_EFFORT, LEAST_S, Slo, remaining

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from serving.engine.server.supervisor import EngineSupervisor

T = TypeVar("T")


class HealedCalls:
    """An engine's `generate` and `encode`; their errors are ones that vLLM puts into a response."""

    def __init__(self, engine: AsyncLLM, supervisor: EngineSupervisor) -> None:
        self._generate = engine.generate
        self._encode = engine.encode
        self._supervisor = supervisor
        self._limit = max_submissions(supervisor.restarts)

    def generate(
        self, slo: Slo, prompt: Any, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of a request; the seconds of its SLO count from this call.

        Raises:
            RequestDropped: its SLO asks to drop it before the engine runs again.
        """
        arrived_s = time.monotonic()

        async def submit() -> AsyncGenerator[RequestOutput, None]:
            spent_s = time.monotonic() - arrived_s
            running = self._supervisor.until_running()
            await within_patience(running, request_id, slo, spent_s=spent_s)
            left = with_time_left(params, slo, spent_s=time.monotonic() - arrived_s)
            async with aclosing(self._generate(prompt, left, request_id, **options)) as outputs:
                async for output in outputs:
                    yield output

        return self._for_vllm(submit, request_id)

    def encode(
        self, prompt: Any, params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """The outputs of a model that does not generate, such as embeddings."""

        async def submit() -> AsyncGenerator[Any, None]:
            await self._supervisor.until_running()
            async with aclosing(self._encode(prompt, params, request_id, **options)) as outputs:
                async for output in outputs:
                    yield output

        return self._for_vllm(submit, request_id)

    async def _for_vllm(
        self, submit: Callable[[], AsyncGenerator[T, None]], request_id: str
    ) -> AsyncGenerator[T, None]:
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            async with aclosing(
                until_begun(submit, request_id, death=EngineDeadError, limit=self._limit)
            ) as outputs:
                async for output in outputs:
                    yield output
        except AnswerLost as error:
            message = lost_message(error.args[1])
            record_error(HTTPStatus.SERVICE_UNAVAILABLE, message)
            raise failure(HTTPStatus.SERVICE_UNAVAILABLE, message) from error
        except RequestFailed as error:  # not 503, at which a gateway asks the next replica
            raise failure(HTTPStatus.INTERNAL_SERVER_ERROR, error.args[1]) from error
        except (EngineDied, EngineClosed) as error:
            raise failure(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error


def with_time_left(params: SamplingParams, slo: Slo, *, spent_s: float) -> SamplingParams:
    """The parameters of a request that has lost some seconds; the same ones if it has lost none.

    Malformed tags, of which the SLO is BEST_EFFORT, are left to the scheduler to reject.
    """
    if spent_s < LEAST_S or slo is BEST_EFFORT:
        return params
    left = params.clone()
    left.extra_args = remaining(params.extra_args, slo, spent_s=spent_s)
    return left
