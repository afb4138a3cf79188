"""Where what can be made again is kept."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_root() -> Path:
    """The user's cache folder of this program; ORCHESTRATE_CACHE overrides it."""
    override = os.environ.get("ORCHESTRATE_CACHE")
    return Path(override) if override else platformdirs.user_cache_path("orchestrate")
