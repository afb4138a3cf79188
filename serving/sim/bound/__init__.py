"""An upper bound on the goodput of any schedule, by linear programming."""
