"""What a simulated or measured run earned: goodput, attainment, latencies."""
