"""What a step is called: its call path, the same in every execution of the same flow."""

from __future__ import annotations

from collections import Counter

# What the path's own grammar uses may stand in a flow's name, and must not make two paths one.
_ESCAPED = str.maketrans({mark: f"%{ord(mark):02x}" for mark in "%/#[]"})


TASK = "~"
"""Begins the name of a task's scope, where a gather's branch has its number."""

GATHER = "gather-"
"""Begins the name under which a gather is recorded, by how many branches it has."""

WRAP_UP = "wrap-up"
"""Names the scope of what is done when a deadline has passed: with what was there by then."""


class StepPath:
    """The steps begun from one place, each with a name of its own.

    A step's identity is the path of names that led to it, never the order of arrival, so that
    parallel branches have the same identities whichever of them is faster. The second step of
    one name in one scope is `name#2`; in a branch of a gather it is `name[3]`, 3 its place; in a
    task that the runtime did not begin `name[~5c0f]`, by what that task does first.
    """

    def __init__(self, text: str = "", name: str = "", branch: str = "", place: int = 0) -> None:
        self.text = text
        self.name = name  # of the innermost step; "" in the flow itself
        self.place = place  # among all that was begun from where this was; 0 the first
        self._branch = branch
        self._names: Counter[object] = Counter()
        self._gathers = 0
        self.num_entered = 0  # steps that began from here, those of a gather's branches left out

    @property
    def key(self) -> str:
        """What tells this scope from every other of its run, the branches of a gather too."""
        return f"{self.text}/{self._branch}" if self.text else self._branch

    def enter(self, name: str) -> StepPath:
        """The scope of a step that begins here."""
        place = self.num_entered
        self.num_entered += 1
        self._names[name] += 1
        ordinal = self._names[name]
        again = f"#{ordinal}" if ordinal > 1 else ""
        prefix = f"{self.text}/" if self.text else ""
        return StepPath(
            f"{prefix}{name.translate(_ESCAPED)}{self._branch}{again}", name, place=place
        )

    def branches(self, count: int) -> list[StepPath]:
        """The scopes of a gather's branches, in the order in which they were given."""
        self._gathers += 1
        again = branch_prefix(self._gathers)
        return [
            StepPath(self.text, self.name, f"{self._branch}[{again}{index}]")
            for index in range(count)
        ]

    def of_task(self, first: str) -> StepPath:
        """The scope of a task that the runtime did not begin: known by what it does first.

        Several that begin with the same are told apart by the order in which they come.
        """
        self._names["task", first] += 1
        ordinal = self._names["task", first]
        again = f":{ordinal}" if ordinal > 1 else ""
        return StepPath(self.text, self.name, f"{self._branch}[{TASK}{first}{again}]")

    def apart(self, mark: str) -> StepPath:
        """The scope of code whose steps have places of their own, whatever else began from here."""
        return StepPath(self.text, self.name, f"{self._branch}[{mark}]")


def branch_prefix(number: int) -> str:
    """How the names of the branches begin of a scope's first gather, or a later one."""
    return f"{number}:" if number > 1 else ""


def parent_key(path: str) -> str:
    """The key of the scope that a step's path began from."""
    above, _, last = path.rpartition("/")
    branch = last[last.index("[") :].partition("#")[0] if "[" in last else ""
    return f"{above}/{branch}" if above else branch


def paths_to(path: str) -> list[str]:
    """A step's path, and those of all steps that it lies in, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def checked_name(name: str) -> str:
    """A name that a record keeps as it is, so that what it names is found again.

    Raises:
        ValueError: it has a NUL, or half a character (a lone surrogate): no database takes them.
    """
    if "\x00" in name or any("\ud800" <= character <= "\udfff" for character in name):
        raise ValueError(f"the name {name!r} has a character that no record can keep: leave it out")
    return name
