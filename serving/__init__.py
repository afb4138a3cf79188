"""LLM serving: SLOs, scheduling policies and the engines. Importing it loads nothing heavy."""
