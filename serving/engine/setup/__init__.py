"""Configuration of an engine: vLLM's arguments, model files, the CPU worker."""
