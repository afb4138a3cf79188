"""The variables that programs in a workspace begin with."""

from __future__ import annotations

import os

_PASSED_ON = frozenset(["PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "VIRTUAL_ENV"])


def variables_for(place: str) -> dict[str, str]:
    """Some of this process, never secrets, and WORKSPACE.

    Args:
        place: the folder in which programs see the workspace.
    """
    passed_on = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON or name.startswith("LC_")
    }
    return passed_on | {"WORKSPACE": place}
