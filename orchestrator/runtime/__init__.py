"""Runs flows: starts, resumes and ends runs, and says how each one ended."""
