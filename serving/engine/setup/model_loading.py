"""Loading a model: the path of its files, and the messages of libraries while it loads."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

from serving.engine.setup.config import EngineConfig
from serving.engine.setup.random_model import ensure_random_model
from serving.engine.setup.smollm2 import SMOLLM2, ensure_smollm2
from serving.errors import ModelNotLoaded

MAX_SUMMARY_CHARS = 400
"""Length of an error message from which its summary is taken, in characters."""


def model_path(config: EngineConfig) -> str:
    """The folder or Hugging Face id to load; a packaged model is created if it is missing.

    Raises:
        ModelNotLoaded: the folder holds no model, or a packaged model cannot be created.
    """
    if config.is_random:
        return str(ensure_random_model())
    if config.model == SMOLLM2:
        return str(ensure_smollm2())
    return check_model_folder(config)


def check_model_folder(config: EngineConfig) -> str:
    """The model as vLLM takes it: a folder or Hugging Face id.

    Raises:
        ModelNotLoaded: the model is a folder without a config.json.
    """
    if not config.model.startswith(("/", ".", "~")):
        return config.model
    folder = Path(config.model).expanduser()
    if not (folder / "config.json").is_file():
        raise ModelNotLoaded(config.model, "there is no config.json in that folder")
    return str(folder)


def silence_warnings() -> None:
    """Hide the warnings of vLLM and its dependencies, not our own; errors are still shown."""
    warnings.simplefilter("ignore")
    # vLLM gives the root logger, which has no handler, the level of its own messages.
    logging.getLogger("orchestrate").setLevel(logging.WARNING)
    # transformers warns of a prompt longer than the context, which raises PromptTooLong anyway.
    logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)


def error_summary(error: BaseException) -> str:
    """One line that says what is wrong, from at most MAX_SUMMARY_CHARS of the message.

    It is the first line, with two exceptions. The first line of a Pydantic error only counts the
    errors, so it is skipped; the next line may be the field's name. A line that ends in a colon is
    joined with the next one.
    """
    lines = [line for line in str(error)[:MAX_SUMMARY_CHARS].splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:
        lines = lines[1:]
        if len(lines) > 1 and not lines[0].startswith(" "):
            lines[0] += ":"
    summary = lines[0].strip().rstrip(".") if lines else ""
    if summary.endswith(":") and len(lines) > 1:
        summary += f" {lines[1].strip()}"
    summary = summary.replace("Value error, ", "").split(" [type=")[0]
    return summary.rstrip(".") or type(error).__name__
