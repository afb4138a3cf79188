"""Virtual time: what a workload asks, what a step costs, and what was kept; simulated, always."""
