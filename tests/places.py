"""Paths of the project and of the optional trace data."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
"""Traces and step costs; tests that need them are skipped if they are missing."""
