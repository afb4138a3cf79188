"""Scheduling policies: pure functions from a StepView to a Plan."""
