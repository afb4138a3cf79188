"""Before a model runs: where its files are, and what loading says, to whom."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

from serving.engine.setup.config import EngineConfig
from serving.engine.setup.demo_model import ensure_demo_model
from serving.errors import ModelNotLoaded

TELLING_CHARS = 400


def model_path(config: EngineConfig) -> str:
    """The folder or Hugging Face id to load; the demo model is made where it is not there yet.

    Raises:
        ModelNotLoaded: a folder was named and holds no model.
    """
    if config.is_demo:
        return str(ensure_demo_model())
    return check_model_folder(config)


def check_model_folder(config: EngineConfig) -> str:
    """The folder or Hugging Face id as vLLM takes it; ModelNotLoaded for a folder without model."""
    if not config.model.startswith(("/", ".", "~")):
        return config.model
    folder = Path(config.model).expanduser()
    if not (folder / "config.json").is_file():
        raise ModelNotLoaded(config.model, "there is no config.json in that folder")
    return str(folder)


def quieten() -> None:
    """Keep from the user what vLLM's dependencies say of one another; errors stay."""
    warnings.simplefilter("ignore")
    # A prompt longer than the model's context is refused by name, not by a warning.
    logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)


def telling_line(error: BaseException) -> str:
    """The line of an error that says what is wrong, at most TELLING_CHARS of it.

    Pydantic's first line only counts those that follow, of which the first may name a field; a
    line that ends in a colon says nothing without the next.
    """
    lines = [line for line in str(error)[:TELLING_CHARS].splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:
        lines = lines[1:]
        if len(lines) > 1 and not lines[0].startswith(" "):
            lines[0] += ":"
    told = lines[0].strip().rstrip(".") if lines else ""
    if told.endswith(":") and len(lines) > 1:
        told += f" {lines[1].strip()}"
    told = told.replace("Value error, ", "").split(" [type=")[0]
    return told.rstrip(".") or type(error).__name__
