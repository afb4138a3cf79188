"""The database behind a store: its address, its file or server, connections and errors."""
