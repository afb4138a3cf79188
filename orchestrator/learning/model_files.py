"""Files of fitted length models: one for each application, in a folder that belongs to a store."""

from __future__ import annotations

import logging
import re
import stat
from pathlib import Path

from blake3 import blake3

from serving.analyzer.fitted import FittedLengths
from serving.errors import CorruptModel, ServingError
from store.database.private_files import data_folder
from store.database.urls import file_of, is_sqlite, normalised, without_password

logger = logging.getLogger("orchestrate")


def models_folder(store_url: str) -> Path:
    """The folder of a store's models: `x.models` for a SQLite file x.db, else in the user's data.

    Raises:
        StoreUnreachable: the URL is not valid.
    """
    address = normalised(store_url)
    if is_sqlite(address):
        return file_of(address).with_suffix(".models")
    name = blake3(without_password(address).encode()).hexdigest()[:16]
    return data_folder() / "models" / name


def model_file(folder: Path, application: str) -> Path:
    """The file of one application's length model."""
    readable = re.sub(r"[^a-z0-9]+", "-", application.lower())[:40].strip("-")
    # The hash separates names that look the same; removing separators keeps it in the folder.
    unique = blake3(application.encode(errors="replace")).hexdigest()[:8]
    return folder / f"{readable}-{unique}.lengths"


def lock_file(folder: Path, application: str) -> Path:
    """The file that is locked while an application is fitted, beside the folder of the models.

    Not within it: if that folder cannot be written, only the length model is lost.
    """
    return folder.parent / f".{folder.name}.{model_file(folder, application).stem}.lock"


def load_lengths(folder: Path, application: str) -> FittedLengths | None:
    """An application's length model; None if there is none, or it is damaged.

    A damaged one is logged. Lengths are then predicted from each step's recent answers.
    """
    path = model_file(folder, application)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
            raise CorruptModel(str(path), "it is not a regular file")
        return FittedLengths.load(path)
    except FileNotFoundError:
        return None
    except (ServingError, OSError) as error:
        logger.warning("%s", error)
        return None
