"""An upper bound on the goodput of any scheduler, by linear programming."""
