"""Runs flows: starts, resumes and ends runs, and reports their results."""
