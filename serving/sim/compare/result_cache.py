"""A cache of results in files; the key includes everything a result depends on, with the code."""

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
from serving.policies.table import DEFAULT_POLICY

LOGGER = logging.getLogger("orchestrate")

_PACKAGE = Path(__file__).parents[2]
_LIBRARIES = ("numpy", "scipy")
CALM_FOLDER = "policies/calm"
"""The code that no other policy imports: while calm is developed, results of the others remain."""

_UNFINISHED = ".part"
_ABANDONED_S = 86_400.0
"""An unfinished file of this age is abandoned: no writer takes that long."""


def code_version(*, without: str | None = None) -> str:
    """A digest of all code that results depend on: this package, vLLM and numeric libraries.

    Args:
        without: a folder of this package that is left out.
    """
    digest = blake3()
    left_out = _PACKAGE / without if without else None
    for path in sorted(_PACKAGE.rglob("*.py")):
        if left_out in path.parents:
            continue
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    libraries = [f"{name}={importlib.metadata.version(name)}" for name in _LIBRARIES]
    digest.update(",".join([f"vllm={PINNED_VLLM}", *libraries]).encode())
    return digest.hexdigest(16)


def results_folder() -> Path:
    """The folder of cached results."""
    return cache_root() / "bench"


@dataclass(frozen=True, slots=True)
class ResultCache:
    """Results as files, one each. Several processes may use one folder at once.

    Args:
        version: of the code; results of other versions are ignored.
        baseline_version: the same for the results of other policies than calm; None: `version`.
    """

    folder: Path
    version: str
    baseline_version: str | None = None

    @classmethod
    def of_this_code(cls) -> ResultCache:
        """The user's cache, with the versions of the present code."""
        without_calm = code_version(without=CALM_FOLDER)
        return cls(results_folder(), code_version(), without_calm)

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The cached result of a key; None if there is none or its file is damaged.

        A damaged file is logged as a warning; the caller computes and stores the result again.
        """
        path = self._path(key)
        try:
            document = json.loads(path.read_bytes())
            entry = {"key": document["key"], "result": document["result"]}
            if document["checksum"] != _checksum(entry):
                raise ValueError("its checksum does not match")
            if entry["key"] != json.loads(self._text(key)):
                raise ValueError("it is the result of another key")
            return dict(entry["result"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            message = "cannot read the cached result %s, computing it again: %s"
            LOGGER.warning(message, path, reason)
            return None

    def put(self, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Store a result atomically. A failure, such as a full disk, is only logged."""
        path = self._path(key)
        unfinished = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.folder, prefix=".", suffix=_UNFINISHED, encoding="utf-8", delete=False
            ) as file:
                unfinished = Path(file.name)
                entry = {"key": json.loads(self._text(key)), "result": result}
                json.dump({"checksum": _checksum(entry), **entry}, file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError as error:
            LOGGER.warning("cannot store a result in %s: %s", self.folder, error)
            if unfinished is not None:
                unfinished.unlink(missing_ok=True)

    def remove_abandoned(self) -> None:
        """Remove unfinished files of interrupted writers, once they are a day old."""
        with suppress(OSError):  # the folder may be unreadable
            for path in self.folder.glob(f".*{_UNFINISHED}"):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > _ABANDONED_S:
                        path.unlink()

    def _path(self, key: Mapping[str, Any]) -> Path:
        return self.folder / f"{blake3(self._text(key).encode()).hexdigest(20)}.json"

    def _text(self, key: Mapping[str, Any]) -> str:
        version = self.version
        if self.baseline_version is not None and _is_without_calm(key):
            version = self.baseline_version
        return json.dumps({**key, "code": version}, sort_keys=True, allow_nan=False)


def _is_without_calm(key: Mapping[str, Any]) -> bool:
    """Whether the result of this key depends on no code of calm."""
    runs = key.get("sort") == "run" and key["policy"]["name"] != DEFAULT_POLICY
    return runs or key.get("sort") in ("capacity", "bound")


def _checksum(entry: Mapping[str, Any]) -> str:
    """A digest of a key and its result, independent of the order in the file."""
    return blake3(json.dumps(entry, sort_keys=True).encode()).hexdigest(16)
