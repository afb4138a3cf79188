import asyncio
from typing import Annotated

from pydantic import BaseModel, Field

from orchestrator import flow, gather, llm, step


class Outline(BaseModel):
    points: list[Annotated[str, Field(max_length=60)]] = Field(min_length=2, max_length=3)


@step
async def paragraph(point: str) -> str:
    return await llm(f"Write a paragraph on: {point}", max_tokens=60)


@flow(deadline="30s", stages=2)
async def article(topic: str) -> str:
    """Write an article on a topic: an outline, then its paragraphs side by side."""
    outline = await llm(f"Name points to make on: {topic}", schema=Outline)
    return "\n\n".join(await gather(*(paragraph(point) for point in outline.points)))


if __name__ == "__main__":
    print(asyncio.run(article("why deadlines matter")))
