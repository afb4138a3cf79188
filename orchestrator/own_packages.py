"""Refuses to start if a user's file hides one of the packages that orchestrator imports.

The top-level import names are fixed. A `store.py` beside a script is found before our package
`store`, and without this check the error would be a ModuleNotFoundError about `store.records`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from orchestrator.errors import PackageShadowed

NEEDED = ("patterns", "serving", "store")
RESERVED = ("agents", "cli", "orchestrator", *NEEDED)


def require_own_packages() -> None:
    """Raise PackageShadowed if an import of a needed package would find another file."""
    root = Path(__file__).resolve().parents[1]
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        found = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if found is not None and found != root / name / "__init__.py":
            raise PackageShadowed(name, str(found), ", ".join(sorted(RESERVED)))


require_own_packages()  # at import, before another module imports one of these packages
