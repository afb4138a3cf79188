"""Tools of agents: a searchable corpus of documents."""
