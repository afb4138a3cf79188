"""The cache folder: files that the program can create again."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_root() -> Path:
    """This program's folder in the user's cache; ORCHESTRATE_CACHE overrides it."""
    override = os.environ.get("ORCHESTRATE_CACHE")
    return Path(override) if override else platformdirs.user_cache_path("orchestrate")
