"""Where programs come from: generators by the papers' tables, trace files, arrival processes."""
