"""The simulator: workloads, the production scheduler in virtual time, metrics, upper bounds."""
