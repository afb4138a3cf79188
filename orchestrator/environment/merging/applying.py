from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Applied:
    n: int = 0


def checked_base(path: Path, root: Path) -> Path:
    return path
