"""Programs: stages of LLM calls with lengths, promises and predictions."""
