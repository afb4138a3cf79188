"""What agents work with: documents to search, and whatever else acts on the world."""
