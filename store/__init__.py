"""What runs did, kept durably: SQLite by default, PostgreSQL by URL.

Start at store.session (open_store) and store.unit_of_work (a transaction's repositories). Nothing
is imported here, so that whoever needs only the records or errors does not load SQLAlchemy.
"""
