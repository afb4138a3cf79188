"""Our scheduler class inside vLLM, and the parts that it is composed of."""
