"""Where fitted length models lie: a file an application, in a folder beside its store."""

from __future__ import annotations

import logging
import re
import stat
from pathlib import Path

import platformdirs
from blake3 import blake3

from serving.analyzer.fitted import FittedLengths
from serving.errors import CorruptModel, ServingError
from store.urls import file_of, is_sqlite, normalised, shown

logger = logging.getLogger("orchestrate")


def models_folder(store_url: str) -> Path:
    """The folder of a store's models: `x.models` beside a SQLite file x.db, else the user's data.

    Raises:
        StoreUnreachable: the URL is none.
    """
    address = normalised(store_url)
    if is_sqlite(address):
        return file_of(address).with_suffix(".models")
    name = blake3(shown(address).encode()).hexdigest()[:16]
    return platformdirs.user_data_path("orchestrate") / "models" / name


def model_file(folder: Path, application: str) -> Path:
    """The file of one application's length model."""
    readable = re.sub(r"[^a-z0-9]+", "-", application.lower())[:40].strip("-")
    # Two names can read alike, and none may lead out of the folder.
    unique = blake3(application.encode(errors="replace")).hexdigest()[:8]
    return folder / f"{readable}-{unique}.lengths"


def lock_file(folder: Path, application: str) -> Path:
    """The file that is locked while an application is fitted: beside the folder, not in it.

    A folder that cannot be written keeps only the length model from being saved.
    """
    return folder.parent / f".{folder.name}.{model_file(folder, application).stem}.lock"


def load_lengths(folder: Path, application: str) -> FittedLengths | None:
    """An application's length model; None if there is none, or none that can be trusted.

    A damaged one is logged: answers are then bounded by what each step's recent ones were.
    """
    path = model_file(folder, application)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for its writer
            raise CorruptModel(str(path), "it is no file")
        return FittedLengths.load(path)
    except FileNotFoundError:
        return None
    except (ServingError, OSError) as error:
        logger.warning("%s", error)
        return None
