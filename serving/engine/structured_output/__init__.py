"""Limits on what a request may ask of structured output: on its schema, and on compiling it."""
