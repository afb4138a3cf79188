"""What flow code imports and calls: flow, step, tool, llm, gather, map, deadlines, questions."""
