"""What an analyzer beside the server knows about a request, added to the request's own tags."""
