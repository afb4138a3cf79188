"""A process that fits an application and kills itself at a given point."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from orchestrator.learning import fitting
from orchestrator.learning.background_fit import fit_alone
from store.fits import Fits
from store.patterns import Patterns

POINTS = {
    "reading": (fitting, "readable_patterns"),
    "clustering": (fitting, "compacted"),
    "lengths": (fitting, "fit"),
    "renaming": (os, "replace"),
    "library": (Patterns, "set_library"),
    "evicting": (Patterns, "delete"),
    "recording": (Fits, "put"),
}
"""For each point, the function that kills the process when it is called."""


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    owner, name = POINTS[sys.argv[1]]
    assert hasattr(owner, name)
    setattr(owner, name, die)
    asyncio.run(fit_alone(sys.argv[2], sys.argv[3]))
