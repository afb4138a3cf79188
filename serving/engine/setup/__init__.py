"""What an engine is started with: configuration, model files, the CPU worker."""
