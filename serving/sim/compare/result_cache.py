"""Results that need not be computed again: by all that they depend on, the code included."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from serving.engine.setup.cache_folder import cache_root
from serving.engine.setup.config import PINNED_VLLM

LOGGER = logging.getLogger("orchestrate")

_PACKAGE = Path(__file__).parents[2]
_LIBRARIES = ("numpy", "scipy")
_UNFINISHED = ".part"
_ABANDONED_S = 86_400.0
"""Age from which on nobody is still writing a file."""


def code_version() -> str:
    """A digest of all code that a result depends on: this package, vLLM, and numeric libraries."""
    digest = blake3()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    libraries = [f"{name}={importlib.metadata.version(name)}" for name in _LIBRARIES]
    digest.update(",".join([f"vllm={PINNED_VLLM}", *libraries]).encode())
    return digest.hexdigest(16)


def results_folder() -> Path:
    """Where results are kept."""
    return cache_root() / "bench"


@dataclass(frozen=True, slots=True)
class ResultCache:
    """Results as files, one each. Several processes may use one folder at once.

    Args:
        version: of the code; results of another one are not seen.
    """

    folder: Path
    version: str

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result kept under a key, as it was put; None where there is none, or a damaged one.

        A damaged one is told of; it is computed and written anew.
        """
        path = self._path(key)
        try:
            document = json.loads(path.read_bytes())
            kept = {"key": document["key"], "result": document["result"]}
            if document["checksum"] != _checksum(kept):
                raise ValueError("its checksum does not match")
            if kept["key"] != json.loads(self._text(key)):
                raise ValueError("it is the result of something else")
            return dict(kept["result"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            told = "the kept result %s cannot be read, and is computed again: %s"
            LOGGER.warning(told, path, reason)
            return None

    def put(self, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Keep a result; readers meet the whole of it or nothing. A full disk is only told of."""
        path = self._path(key)
        unfinished = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.folder, prefix=".", suffix=_UNFINISHED, encoding="utf-8", delete=False
            ) as file:
                unfinished = Path(file.name)
                kept = {"key": json.loads(self._text(key)), "result": result}
                json.dump({"checksum": _checksum(kept), **kept}, file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError as error:
            LOGGER.warning("a result cannot be kept in %s: %s", self.folder, error)
            if unfinished is not None:
                unfinished.unlink(missing_ok=True)

    def remove_abandoned(self) -> None:
        """Remove what writers left that were ended amid their work, once it is a day old."""
        with suppress(OSError):  # of a folder that may not be entered, too
            for path in self.folder.glob(f".*{_UNFINISHED}"):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > _ABANDONED_S:
                        path.unlink()

    def _path(self, key: Mapping[str, Any]) -> Path:
        return self.folder / f"{blake3(self._text(key).encode()).hexdigest(20)}.json"

    def _text(self, key: Mapping[str, Any]) -> str:
        return json.dumps({**key, "code": self.version}, sort_keys=True, allow_nan=False)


def _checksum(kept: Mapping[str, Any]) -> str:
    """Of a key and its result, however the file's text sets them."""
    return blake3(json.dumps(kept, sort_keys=True).encode()).hexdigest(16)
