"""Ready pipelines and the tools they use."""
