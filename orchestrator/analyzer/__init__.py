"""The process beside a server that learns from its calls: which belong together, and what comes."""
