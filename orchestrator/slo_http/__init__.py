"""HTTP requests that carry a run's deadline to our server, whichever client makes them."""
