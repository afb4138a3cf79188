"""Models that this program creates in its cache folder, once, and whole or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from serving.engine.setup.cache_folder import cache_root
from serving.errors import ModelNotLoaded

MARKER = "orchestrate.json"
"""A file in the folder of such a model: its recipe and the sizes of its other files."""


def cached_model(
    name: str,
    recipe: dict[str, Any],
    create: Callable[[Path], None],
    *,
    root: Path | None = None,
) -> Path:
    """The folder of a model, created if it is missing; safe with several processes.

    Args:
        name: of the folder; another one for another recipe.
        recipe: what the marker says of the model.
        create: writes the model's files into an empty folder.
        root: the cache folder; None: this program's.
    Raises:
        ModelNotLoaded: the cache folder cannot be written.
    """
    models = (root or cache_root()) / "models"
    folder = models / name
    if is_complete(folder):
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(models / f"{name}.lock"):
            if not is_complete(folder):
                _create(folder, recipe, create)
    except OSError as error:
        raise ModelNotLoaded(name, str(error)) from error
    return folder


def is_complete(folder: Path) -> bool:
    """Whether all files of a model exist in the sizes in which they were created."""
    try:
        sizes = marker_of(folder)["bytes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, KeyError, AttributeError):
        return False


def marker_of(folder: str | Path) -> dict[str, Any]:
    """What the marker of a model's folder says; empty without a readable one."""
    try:
        marker = json.loads((Path(folder) / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) else {}


def _create(folder: Path, recipe: dict[str, Any], create: Callable[[Path], None]) -> None:
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        create(unfinished)
        sizes = {path.name: path.stat().st_size for path in unfinished.iterdir()}
        marker = json.dumps(recipe | {"bytes": sizes})
        (unfinished / MARKER).write_text(marker, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
