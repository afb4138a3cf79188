"""Durable records of runs: in SQLite by default, in PostgreSQL by URL.

Start at store.session (open_store) and store.unit_of_work (a transaction's repositories). Nothing
is imported here, so that code which needs only the records or errors does not load SQLAlchemy.
"""
