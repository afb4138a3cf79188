"""A web service: a run for each request, its text streamed to the browser as it is written.

    ORCHESTRATE_POLICY_PARAMS='{"fairness": 0.5}' SERVICE_KEYS=ann-secret:ann,ben-secret:ben \\
        uvicorn --app-dir examples service:app --timeout-graceful-shutdown 10

docs/guides/service.md explains it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, Field

from orchestrator import (
    AnswerRefused,
    NoOpenQuestion,
    RunAlreadyEnded,
    RunHandle,
    RunInfo,
    RunInterrupted,
    Runtime,
    RuntimeDraining,
    best_so_far,
    flow,
    input_required,
    llm,
    open_runtime,
    step,
)
from store.errors import RunNotFound

DRAIN_S = float(os.environ.get("SERVICE_DRAIN_S", "20"))
"""How long runs in progress may go on after SIGTERM; the others continue in the next process."""

MAX_RUNS = 16
"""Most runs of one user at the same time."""


@step
async def write(topic: str, tone: str) -> str:
    return await llm(f"Write a {tone} paragraph on: {topic}", max_tokens=100)


@flow(deadline="30s", on_deadline="best_so_far")
async def article(topic: str, ask: bool) -> str:
    """A paragraph on a topic. With `ask`, a person chooses the tone, in time of their own."""
    best_so_far(f"There was no time to write on {topic}.")
    tone = "plain"
    if ask:
        question = "Which tone: plain or playful?"
        choice = Literal["plain", "playful"]
        tone = await input_required(question, schema=choice, stops_clock=True)
    return await write(topic, tone)


class Service:
    """The runs of this process, by id.

    Attributes:
        handles: of runs that this process executes, for their text.
        in_progress: number of them for each user.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.handles: dict[str, RunHandle[str]] = {}
        self.in_progress: Counter[str] = Counter()

    async def begin(self, topic: str, ask: bool, user: str) -> str:
        """Begin a run; once its id is returned, the run survives this process."""
        if self.in_progress[user] >= MAX_RUNS:
            raise HTTPException(429, f"{MAX_RUNS} of your articles are being written")
        handle = self.runtime.start(article.options(user=user), topic, ask)
        self._keep(handle, user)
        try:
            await handle.begun()
        except (RuntimeDraining, RunInterrupted):
            raise HTTPException(503, "this process is shutting down: ask again") from None
        return handle.id

    async def resume(self) -> None:
        """Continue what the process before has left."""
        for handle in await self.runtime.resume_orphans(article):
            self._keep(handle, (await self.runtime.get(handle.id)).user)

    async def run_of(self, run_id: str, user: str) -> RunInfo:
        """A run of this user; another user's is not found."""
        try:
            info = await self.runtime.get(run_id)
        except RunNotFound:
            info = None
        if info is None or info.user != user or info.flow != article.name:
            raise HTTPException(404, f"you have no article {run_id}")
        return info

    async def text(self, run_id: str) -> AsyncIterator[str]:
        """The text of a run as server-sent events; the last one is `end`, with the whole."""
        handle = self.handles.get(run_id)
        if handle is not None:
            async for piece in handle.text(step="write"):
                yield _event("text", piece)
        info = await self.runtime.get(run_id)
        if info.status == "completed":
            done = await self.runtime.resume(run_id, article)  # its recorded result
            yield _event("end", {"status": info.status, "text": done.value})
        else:
            yield _event("end", {"status": info.status, "error": info.error})

    def _keep(self, handle: RunHandle[str], user: str) -> None:
        self.handles[handle.id] = handle
        self.in_progress[user] += 1
        handle.text()  # asked for now, so that each call is streamed, whenever a client reads it

        def ended() -> None:
            self.in_progress[user] -= 1
            del self.handles[handle.id]

        handle.when_ended(ended)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model before the first request; hand over what is unfinished after the last."""
    async with open_runtime(start=True) as runtime:
        app.state.service = service = Service(runtime)
        await service.resume()
        yield
        await runtime.drain(DRAIN_S)


app = FastAPI(title="Articles", lifespan=lifespan)


def service_of(request: Request) -> Service:
    """The service of the application."""
    service: Service = request.app.state.service
    return service


def user_of(authorization: Annotated[str, Header()] = "") -> str:
    """The user whose key a request has: `Authorization: Bearer KEY`."""
    keys = dict(pair.split(":") for pair in os.environ["SERVICE_KEYS"].split(","))
    scheme, _, key = authorization.partition(" ")
    user = keys.get(key) if scheme == "Bearer" else None
    if user is None:
        raise HTTPException(401, "send a key: Authorization: Bearer KEY")
    return user


ServiceOf = Annotated[Service, Depends(service_of)]
User = Annotated[str, Depends(user_of)]


class Order(BaseModel):
    """What a client asks for."""

    topic: str = Field(min_length=1, max_length=500)
    ask: bool = False


class Given(BaseModel):
    """An answer to a question."""

    value: str


@app.get("/")
async def page() -> FileResponse:
    """A page that orders an article and shows its text as it is written."""
    return FileResponse(Path(__file__).with_name("service.html"))


@app.post("/articles", status_code=201)
async def begin(order: Order, service: ServiceOf, user: User) -> dict[str, str]:
    """Begin to write an article."""
    return {"id": await service.begin(order.topic, order.ask, user)}


@app.get("/articles")
async def articles(service: ServiceOf, user: User) -> list[RunInfo]:
    """The user's articles, newest first."""
    return await service.runtime.runs(flow=article.name, user=user)


@app.get("/articles/{run_id}")
async def one(run_id: str, service: ServiceOf, user: User) -> RunInfo:
    """How far an article is, and the questions that wait for an answer."""
    return await service.run_of(run_id, user)


@app.get("/articles/{run_id}/text")
async def text(run_id: str, service: ServiceOf, user: User) -> StreamingResponse:
    """The article's text as server-sent events."""
    await service.run_of(run_id, user)
    return StreamingResponse(service.text(run_id), media_type="text/event-stream")


@app.post("/articles/{run_id}/answer", status_code=204)
async def answer(run_id: str, given: Given, service: ServiceOf, user: User) -> None:
    """Answer the article's question."""
    await service.run_of(run_id, user)
    try:
        await service.runtime.answer(run_id, given.value)
    except (AnswerRefused, NoOpenQuestion) as error:
        raise HTTPException(409, str(error)) from None


@app.delete("/articles/{run_id}", status_code=204)
async def cancel(run_id: str, service: ServiceOf, user: User) -> None:
    """Stop writing an article."""
    await service.run_of(run_id, user)
    try:
        await service.runtime.cancel(run_id)
    except RunAlreadyEnded as error:
        raise HTTPException(409, str(error)) from None


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
