"""What a step is called: its call path, the same in every execution of the same flow."""

from __future__ import annotations

from collections import Counter

# What the path's own grammar uses may stand in a flow's name, and must not make two paths one.
_ESCAPED = str.maketrans({mark: f"%{ord(mark):02x}" for mark in "%/#[]"})


class Scope:
    """The steps begun from one place, each with a name of its own.

    A step's identity is the path of names that led to it, never the order of arrival, so that
    parallel branches have the same identities whichever of them is faster. The second step of
    one name in one scope is `name#2`; in a branch of a gather it is `name[3]`, 3 its place.
    """

    def __init__(self, path: str = "", name: str = "", branch: str = "") -> None:
        self.path = path
        self.name = name  # of the innermost step; "" in the flow itself
        self._branch = branch
        self._names: Counter[str] = Counter()
        self._gathers = 0

    def enter(self, name: str) -> Scope:
        """The scope of a step that begins here."""
        self._names[name] += 1
        ordinal = self._names[name]
        again = f"#{ordinal}" if ordinal > 1 else ""
        prefix = f"{self.path}/" if self.path else ""
        return Scope(f"{prefix}{name.translate(_ESCAPED)}{self._branch}{again}", name)

    def branches(self, count: int) -> list[Scope]:
        """The scopes of a gather's branches, in the order in which they were given."""
        self._gathers += 1
        again = f"{self._gathers}:" if self._gathers > 1 else ""
        return [
            Scope(self.path, self.name, f"{self._branch}[{again}{index}]") for index in range(count)
        ]
