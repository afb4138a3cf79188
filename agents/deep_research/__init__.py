"""Deep research over a folder of documents, with a deadline."""
