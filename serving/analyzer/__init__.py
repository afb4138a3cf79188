"""What is known about a request before and while it runs: length bounds."""
