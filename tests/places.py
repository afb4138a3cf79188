"""Where the project and the optional trace data lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
"""Traces and step costs that tests read where they are present, and skip where not."""
