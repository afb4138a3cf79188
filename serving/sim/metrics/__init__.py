"""Metrics of a simulated or measured run: goodput, SLO attainment, latencies."""
