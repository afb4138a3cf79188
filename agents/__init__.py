"""Ready-made agent pipelines and their tools."""
