"""Deep research in a folder of documents, with a deadline."""
