"""The flow of the runs that the former version recorded; its steps must not change."""

from typing import Annotated

from pydantic import BaseModel, Field

from orchestrator import flow, gather, input_required, llm, now, remaining, step, tool, within


class Plan(BaseModel):
    """Which sections to write."""

    sections: list[Annotated[str, Field(max_length=40)]]


class Unavailable(Exception):
    """The library is closed."""


@tool(effects="pure")
async def look_up(word: str) -> list[str]:
    if word == "closed":
        raise Unavailable(f"no {word}")
    return [word, word.upper()]


@tool(effects="external")
async def send(text: str) -> str:
    return f"sent {len(text)} characters"


@step(cache="3650d")
async def summary(text: str) -> str:
    return await llm(f"Summarise: {text}", max_tokens=20)


@step
async def section(title: str) -> str:
    found = await look_up(title)
    async with within("30s"):
        draft = await llm(f"Draft {title} from {' '.join(found)}", max_tokens=120)
    return await summary(draft)


@flow(deadline="60s", stages=4, name="handbook")
async def handbook(topic: str, ask: bool = False) -> str:
    began = now()
    plan = await llm(f"Plan {topic}", schema=Plan)
    assert remaining() > 0
    parts = await gather(*(section(title) for title in plan.sections))
    text = "\n".join(parts)
    if ask:
        text += await input_required("Publish?", schema=str)
    receipt = await send(text)
    return f"{began:%Y}: {receipt}"
