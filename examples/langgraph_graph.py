from langchain_core.messages import AnyMessage
from langgraph.graph import START, MessagesState, StateGraph

from orchestrator.chat_model import ChatOrchestrate
from orchestrator.langgraph import attach


def answer(state: MessagesState) -> dict[str, list[AnyMessage]]:
    return {"messages": [ChatOrchestrate(max_tokens=50).invoke(state["messages"])]}


builder = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer")
graph = attach(builder.compile(), deadline="30s", on_deadline="best_so_far")
print(graph.invoke({"messages": [("user", "Why do deadlines matter?")]})["messages"][-1].text)
