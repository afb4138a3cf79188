import asyncio

from orchestrator import agent, flow, tool

STOCK = {"bolts": 120, "nuts": 40}


@tool(effects="pure")
def in_stock(part: str) -> int:
    """How many pieces of a part are in stock.

    Args:
        part: its name, such as bolts
    """
    return STOCK[part]


@tool(effects="external")
async def order(part: str, pieces: int) -> str:
    """Order pieces of a part."""
    return f"ordered {pieces} {part}"


@flow(deadline="60s")
async def restock(wish: str) -> str:
    """Let the model look into the stock, and order what is missing."""
    result = await agent(wish, [in_stock, order], max_rounds=4, max_tokens=300)
    calls = "".join(f"{use.name} {use.arguments} -> {use.result}\n" for use in result.calls)
    return f"{calls}answer: {result.value}"


if __name__ == "__main__":
    print(asyncio.run(restock("How many nuts are there? Order more if there are less than 50.")))
