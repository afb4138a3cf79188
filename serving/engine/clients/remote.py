"""An engine behind an OpenAI-compatible HTTP API: our server, or any other."""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from serving.engine.clients.chat_turns import openai_tool, openai_turn
from serving.engine.clients.remote_answers import ErrorResponse, StreamedAnswer
from serving.engine.clients.remote_embeddings import batches_of, vectors_of
from serving.engine.healing.resubmission import until_begun
from serving.engine.server.local_host import is_loopback
from serving.engine.server.slo_middleware import POLICY_HEADER, SCHEDULER_HEADER
from serving.engine.setup.config import CAVEATS, RANDOM_MODEL, check_api_key
from serving.engine.setup.model_size import num_parameters
from serving.engine.setup.tool_formats import NO_PARSER
from serving.errors import (
    AnswerLost,
    EmbeddingsNotSupported,
    EngineClosed,
    InvalidEngineConfig,
    ModelNotServed,
    RemoteRefused,
    RemoteUnavailable,
    ServingError,
    ToolsNotSupported,
)
from serving.generation import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    Chunk,
    Completion,
    EngineInfo,
    GenerationRequest,
    check_request,
    last_completion,
)
from serving.slo import LEAST_S, from_tags, remaining, to_tags

if TYPE_CHECKING:
    from openai import AsyncOpenAI

DEFAULT_TIMEOUT_S = 600.0
"""Default limit on the silence of a server, in seconds."""

CONNECT_TIMEOUT_S = 10.0
"""Limit on connecting, and on listing the models, in seconds."""

MAX_SUBMISSIONS = 3
"""Submissions of a request if the server's engine dies; each lasts until the engine runs again."""

logger = logging.getLogger("orchestrate")


class RemoteEngine:
    """Runs LLM calls on a server; belongs to the event loop that starts it.

    Our own server names its scheduler in a header of every response. SLO tags and priorities are
    sent only to such a server: others would ignore them or refuse the request, and have "" as
    `info.scheduler`. No call is retried here, so a call runs at most once.

    Args:
        base_url: the API's root; "/v1" is added if the URL has no path.
        model: the served model to use; None: the first that the server lists.
        api_key: bearer token; None: a placeholder is sent.
        timeout_s: longest silence of the server. Our server sends something every ten seconds while
            a request waits, so there a short timeout distinguishes a busy server from a dead one.
        tool_parser: "" or "none": ask the server for no tool calls in the model's own format; else
            the server reads them, until it refuses a request with tools.
    Raises:
        InvalidEngineConfig: the URL is not an http or https URL, or the timeout is not above 0.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        tool_parser: str | None = None,
    ) -> None:
        self.base_url = _api_root(base_url)
        if not timeout_s > 0:
            raise InvalidEngineConfig("timeout_s", timeout_s, "must be above 0")
        if api_key:
            check_api_key(api_key)
        self.timeout_s = timeout_s
        self._model = model
        self._api_key = api_key
        self._tool_setting = tool_parser
        self._tool_parser = "" if tool_parser in NO_PARSER else "server"
        self._info = EngineInfo(
            "remote", model or "", model == RANDOM_MODEL, None, tool_parser=self._tool_parser
        )
        self._is_vllm = False
        self._served: tuple[str, ...] = ()
        self._others: dict[str, RemoteEngine] = {}
        self._client: AsyncOpenAI | None = None
        self._starting = asyncio.Lock()
        self._readers: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        """Description of this engine; complete once it has started."""
        return self._info

    async def start(self) -> None:
        """Ask the server for its models; idempotent.

        Raises:
            RemoteUnavailable: the server does not answer.
            RemoteRefused: it answers with an error, or without a list of models.
            ModelNotServed: it does not serve the model.
        """
        async with self._starting:
            if self._closed:
                raise EngineClosed(self._info.model)
            if self._client is not None:
                return
            client = await self._connect()
            try:
                await self._read_info(client)
            except BaseException:
                await client.close()
                raise
            self._client = client

    async def models(self) -> tuple[str, ...]:
        """The models that the server listed when this engine was started; raises as `start`."""
        await self.start()
        return self._served

    async def of_model(self, model: str) -> RemoteEngine:
        """The engine for another model of the server, started; closed with this one.

        Raises:
            ModelNotServed: the server does not serve it.
            And as `start`.
        """
        await self.start()
        if model == self._info.model:
            return self
        other = self._others.get(model)
        if other is None:
            other = RemoteEngine(
                self.base_url,
                model=model,
                api_key=self._api_key,
                timeout_s=self.timeout_s,
                # As it was given: that one model was refused tools says nothing about another.
                tool_parser=self._tool_setting,
            )
            self._others[model] = other
        try:
            await other.start()
        except ModelNotServed:
            self._others.pop(model, None)
            raise
        return other

    async def generate(self, request: GenerationRequest) -> Completion:
        """Submit a request and wait for its answer; cancelling aborts it.

        It is streamed, but the caller sees nothing before its end: if the server's engine dies, it
        is submitted again, with what is left of its SLO.
        """
        submitted_s = time.monotonic()

        async def submit() -> AsyncGenerator[Completion, None]:
            left = _with_time_left(request, time.monotonic() - submitted_s)
            yield await last_completion(self.stream(left))

        submissions = until_begun(
            submit, request.request_id, death=AnswerLost, limit=MAX_SUBMISSIONS
        )
        [completion] = [each async for each in submissions]
        return completion

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Submit a request and yield its text as it grows; closing the iterator aborts it.

        Raises:
            InvalidRequest, InvalidSlo, PromptTooLong: the server can never run the request.
            ToolsNotSupported: it has tools, and the server does not read tool calls.
            RequestDropped: the scheduler dropped it, as its SLO asks for.
            RequestFailed: the server ended it without an answer.
            AnswerLost: the server's engine died within the answer.
            RemoteRefused, RemoteUnavailable: the server failed, or cannot be reached.
            EngineClosed: this engine was closed.
        """
        check_request(request)
        await self.start()
        if request.tools and not self._tool_parser:
            reason = f"{self.base_url} is not asked for tool calls in the model's own format"
            raise ToolsNotSupported(request.request_id, reason)
        answers: asyncio.Queue[Chunk | BaseException] = asyncio.Queue()
        reader = asyncio.create_task(self._read(request, answers))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        try:
            while True:
                answer = await answers.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
                if answer.completion is not None:
                    return
        finally:
            reader.cancel()  # closes the connection; the server then aborts the request
            await asyncio.wait([reader])

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text, by `/v1/embeddings`; many texts are sent in several requests.

        Raises:
            InvalidRequest: the server refuses the texts, such as one that is too long.
            EmbeddingsNotSupported: the server has no such path, or not for this model.
            RemoteRefused, RemoteUnavailable: the server failed, or cannot be reached.
            EngineClosed: this engine was closed.
        """
        await self.start()
        vectors: list[list[float]] = []
        for batch in batches_of(texts):
            work = asyncio.create_task(self._embed(batch))
            self._readers.add(work)
            work.add_done_callback(self._readers.discard)
            try:
                await asyncio.wait([work])
            finally:
                work.cancel()  # closes the connection, if this call was cancelled
                await asyncio.wait([work])
            if work.cancelled():  # by `close`
                raise EngineClosed(self._info.model)
            vectors += work.result()
        return vectors

    async def close(self) -> None:
        """End every request still running with EngineClosed, and the connections; idempotent."""
        self._closed = True
        async with self._starting:
            readers = list(self._readers)
            for reader in readers:
                reader.cancel()
            if readers:
                await asyncio.wait(readers)
            if self._client is not None:
                await self._client.close()
            for other in list(self._others.values()):  # `of_model` may still remove one
                await other.close()

    async def _connect(self) -> AsyncOpenAI:
        # The import takes half a second or more, so it must not run on the event loop.
        openai = await asyncio.to_thread(importlib.import_module, "openai")
        local = is_loopback(urlsplit(self.base_url).hostname or "")
        client: AsyncOpenAI = openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=self._api_key or "none",  # else it would send the user's OPENAI_API_KEY
            max_retries=0,
            timeout=openai.Timeout(self.timeout_s, connect=min(CONNECT_TIMEOUT_S, self.timeout_s)),
            # A proxy from the environment cannot reach this machine's loopback interface.
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False) if local else None,
        )
        return client

    async def _read_info(self, client: AsyncOpenAI) -> None:
        from openai import OpenAIError

        try:
            answer = await client.models.with_raw_response.list(
                timeout=min(CONNECT_TIMEOUT_S, self.timeout_s)
            )
            cards = getattr(answer.parse(), "data", None)
        except (OpenAIError, ValueError) as error:
            raise self._named(error, None) from error
        if not isinstance(cards, list):
            raise RemoteRefused(self.base_url, answer.status_code, "it sent no list of models")
        by_id = {str(getattr(card, "id", "")): card for card in cards}
        self._served = tuple(by_id)
        model = self._model or next(iter(by_id), "")
        if model not in by_id:
            raise ModelNotServed(self.base_url, model, tuple(by_id))
        card = by_id[model]
        self._is_vllm = getattr(card, "owned_by", "") == "vllm"
        self._info = EngineInfo(
            name="remote",
            model=model,
            random_weights=model == RANDOM_MODEL,
            max_model_tokens=getattr(card, "max_model_len", None),
            scheduler=answer.headers.get(SCHEDULER_HEADER, ""),
            policy=answer.headers.get(POLICY_HEADER, ""),
            caveat=CAVEATS.get(model, ""),
            parameters=num_parameters(model),
            tool_parser=self._tool_parser,
        )

    async def _read(
        self, request: GenerationRequest, answers: asyncio.Queue[Chunk | BaseException]
    ) -> None:
        """Put a request's chunks, then its completion or error, into a queue."""
        from openai import OpenAIError

        streamed = StreamedAnswer(request)
        try:
            async with await self._submit(request) as parts:
                async for part in parts:
                    text = streamed.add(part)
                    if text:
                        answers.put_nowait(Chunk(text))
            answers.put_nowait(Chunk("", streamed.completion(self.base_url)))
        except (OpenAIError, ValueError) as error:
            named = self._named(error, request)
            named.__cause__ = error
            if isinstance(named, ToolsNotSupported):
                self._no_more_tools(str(named.args[1]))
            answers.put_nowait(named)
        except asyncio.CancelledError:
            answers.put_nowait(EngineClosed(self._info.model))
            raise
        except BaseException as error:
            answers.put_nowait(error)

    def _no_more_tools(self, reason: str) -> None:
        """Learn that the server does not read tool calls; later requests do not ask for them."""
        if self._tool_parser:
            logger.warning(
                "%s does not take tools, so that its model is asked for tool calls in JSON from now"
                " on, one at a time (vLLM's server takes them with --enable-auto-tool-choice and"
                " --tool-call-parser): %s",
                self.base_url,
                reason,
            )
        self._tool_parser = ""
        self._info = replace(self._info, tool_parser="")

    async def _embed(self, texts: Sequence[str]) -> list[list[float]]:
        from openai import APIStatusError, OpenAIError

        if self._closed or self._client is None:
            raise EngineClosed(self._info.model)
        model = self._info.model
        try:
            answer = await self._client.embeddings.create(
                model=model, input=list(texts), encoding_format="float"
            )
            return vectors_of(answer, len(texts))
        except (OpenAIError, AttributeError, TypeError, ValueError) as error:
            if isinstance(error, APIStatusError) and error.status_code in (404, 405, 501):
                raise EmbeddingsNotSupported(self.base_url, model) from error
            request = GenerationRequest(request_id="embed()", prompt="")
            raise self._named(error, request) from error

    async def _submit(self, request: GenerationRequest) -> Any:
        if self._closed or self._client is None:
            raise EngineClosed(self._info.model)
        arguments = self._arguments(request)
        create: Any  # its overloads have only the fields of OpenAI
        if isinstance(request.prompt, str):
            create = self._client.completions.create
            return await create(prompt=request.prompt, **arguments)
        create = self._client.chat.completions.create
        turns = [openai_turn(turn) for turn in request.prompt]
        return await create(messages=turns, **arguments)

    def _arguments(self, request: GenerationRequest) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": self._info.model,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        max_tokens = request.max_tokens
        limit = self._info.max_model_tokens
        if self._is_vllm and limit is not None:
            # vLLM reduces this to the rest of the context. Its default for plain prompts is 16.
            max_tokens = min(max_tokens or limit, limit)
        if max_tokens is not None:
            arguments["max_tokens"] = max_tokens
        if request.seed is not None:
            arguments["seed"] = request.seed
        if request.stop:
            arguments["stop"] = list(request.stop)
        arguments |= _changed(request, {"frequency_penalty": 0.0, "presence_penalty": 0.0})
        # vLLM's own fields. Other servers ignore them or refuse the request.
        extra = _changed(request, {"top_k": None, "min_p": 0.0, "repetition_penalty": 1.0})
        arguments |= _of_logprobs(request)
        if request.tools:
            arguments["tools"] = [openai_tool(tool) for tool in request.tools]
        if request.choices and self._is_vllm:
            extra["structured_outputs"] = {"choice": list(request.choices)}
        if request.schema is not None:
            # OpenAI has this field for chats only; vLLM also has it for plain prompts.
            schema = {"name": "answer", "schema": dict(request.schema), "strict": True}
            extra["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self._info.scheduler:
            extra |= {"vllm_xargs": to_tags(request.slo), "priority": request.priority}
        return arguments | {"extra_body": extra, "extra_headers": dict(request.trace_headers)}

    def _named(self, error: Exception, request: GenerationRequest | None) -> ServingError:
        """The named error for an error of the HTTP client; `request` is None while starting."""
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        if isinstance(error, APITimeoutError):
            return RemoteUnavailable(self.base_url, "it was silent for longer than the timeout")
        if isinstance(error, APIConnectionError):
            return RemoteUnavailable(self.base_url, str(error.__cause__ or error))
        if isinstance(error, APIError):
            body = error.body if isinstance(error.body, Mapping) else {"message": error.body}
            response = ErrorResponse(
                status=error.status_code
                if isinstance(error, APIStatusError)
                else _int_or(body.get("code"), 500),
                message=str(body.get("message") or error.message),
                kind=str(body.get("type")),
                param=str(body.get("param")),
            )
            if request is not None:
                return response.named(self.base_url, request, self._info.max_model_tokens)
            return RemoteRefused(self.base_url, response.status, response.message)
        return RemoteRefused(self.base_url, 200, f"not a valid response of the API: {error}")


def _with_time_left(request: GenerationRequest, spent_s: float) -> GenerationRequest:
    if spent_s < LEAST_S:
        return request
    tags = remaining(to_tags(request.slo), request.slo, spent_s=spent_s)
    return replace(request, slo=from_tags(tags))


def _changed(request: GenerationRequest, defaults: Mapping[str, object]) -> dict[str, Any]:
    """Those of a request's fields that differ from their defaults."""
    values = {name: getattr(request, name) for name in defaults}
    return {name: value for name, value in values.items() if value != defaults[name]}


def _of_logprobs(request: GenerationRequest) -> dict[str, Any]:
    """What asks for log-probabilities; OpenAI's two APIs differ."""
    num_top = MAX_CHOICES if request.choices else request.logprobs
    if num_top is None:
        return {}
    if isinstance(request.prompt, str):
        return {"logprobs": num_top}
    if not num_top:
        return {"logprobs": True}
    # In a chat vLLM lists the token itself among them, in the place of the least probable one.
    return {"logprobs": True, "top_logprobs": min(num_top + 1, MAX_LOGPROBS)}


def _api_root(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InvalidEngineConfig("base_url", url, "must be like http://127.0.0.1:8000/v1")
    return url.rstrip("/") if parts.path.strip("/") else url.rstrip("/") + "/v1"


def _int_or(value: object, default: int) -> int:
    return value if isinstance(value, int) else default
