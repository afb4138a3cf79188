"""vLLM's OpenAI-compatible server with our scheduler and SLO tags."""
