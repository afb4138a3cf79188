"""Programs: stages of LLM calls with lengths, SLOs and predictions."""
