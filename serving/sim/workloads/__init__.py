"""Sources of programs: generators after the papers' tables, trace files, arrival processes."""
