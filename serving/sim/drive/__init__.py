"""Drivers that run programs on the production scheduler, in virtual or in real time."""
