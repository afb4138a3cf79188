"""Learning from past runs: pattern library, sub-deadlines of stages, length models."""
