import asyncio
import tempfile

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from orchestrator import current_workspace
from orchestrator.chat_model import ChatOrchestrate
from orchestrator.langgraph import attach

THREAD = {"configurable": {"thread_id": "letter"}}


async def draft(state: MessagesState) -> MessagesState:
    """Let the model answer, and write the answer to a file."""
    answer = await ChatOrchestrate(max_tokens=20).ainvoke(state["messages"])
    await current_workspace().write("letter.txt", f"{answer.text}\n")
    return {"messages": [answer]}


async def sign(_: MessagesState) -> MessagesState:
    signed = await current_workspace().run("echo Yours, Ada >> letter.txt; tail -n 1 letter.txt")
    return {"messages": [("assistant", signed.stdout)]}


async def main() -> None:
    builder = StateGraph(MessagesState).add_node(draft).add_node(sign)
    builder.add_edge(START, "draft").add_edge("draft", "sign")
    with tempfile.TemporaryDirectory() as folder:
        plain = builder.compile(checkpointer=InMemorySaver())
        graph = attach(plain, workspace=folder, deadline="60s")
        await graph.ainvoke({"messages": [("user", "Write a letter.")]}, THREAD)
        for past in [each async for each in graph.aget_state_history(THREAD)]:
            async with graph.workspace_at(past.config) as ws:  # files and state agree
                files = await ws.run("wc -l * || true")
                print(f"next {past.next}: {files.stdout.strip() or 'no file'}")
            if past.next == ("sign",):
                unsigned = past.config
        await graph.ainvoke(None, unsigned)  # goes back, and signs again: one signature
        async with graph.workspace_at(THREAD) as ws:
            print(await ws.changeset())


if __name__ == "__main__":
    asyncio.run(main())
