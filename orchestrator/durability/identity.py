"""Step identity: a step's call path, the same in every execution of the same flow."""

from __future__ import annotations

import re
from collections import Counter

# A name may contain the path's separators; unescaped, two different paths could look the same.
_ESCAPED = str.maketrans({mark: f"%{ord(mark):02x}" for mark in "%/#[]"})


TASK = "~"
"""Prefix of a task's branch mark, in the position of the index of a gather's branch."""

GATHER = "gather-"
"""Prefix of the recorded name of a gather; the number of its branches follows."""

WRAP_UP = "wrap-up"
"""Branch mark of the steps that `wrap_up` begins, in the time reserved before a deadline."""


class StepPath:
    """The path of a step, or of a branch in it; names the steps that begin from there.

    A step's identity is the path of names that led to it, never the order of arrival, so that
    parallel branches have the same identities whichever of them is faster. The second step of
    one name begun from one path is `name#2`; in a branch of a gather it is `name[3]` where 3 is
    the branch's index; in a task that the runtime did not start it is `name[~5c0f]`, where `5c0f`
    is a digest of the task's first step.

    Attributes:
        text: the path; "" for the flow itself.
        name: of the innermost step; "" in the flow itself.
        place: index of the step among all that began from the path around it; 0 is the first.
        num_entered: steps begun from here so far, without those in branches of a gather.
    """

    def __init__(self, text: str = "", name: str = "", branch: str = "", place: int = 0) -> None:
        self.text = text
        self.name = name
        self.place = place
        self._branch = branch
        self._names: Counter[object] = Counter()
        self._num_gathers = 0
        self.num_entered = 0

    @property
    def key(self) -> str:
        """Unique in the run: the path and the branch within it."""
        return f"{self.text}/{self._branch}" if self.text else self._branch

    def enter(self, name: str) -> StepPath:
        """The path of the next step with this name that begins here."""
        text, place = self.next_text(name), self.num_entered
        self.num_entered += 1
        self._names[name] += 1
        return StepPath(text, name, place=place)

    def next_text(self, name: str) -> str:
        """The text of the path that `enter` will return."""
        ordinal = self._names[name] + 1
        suffix = f"#{ordinal}" if ordinal > 1 else ""
        prefix = f"{self.text}/" if self.text else ""
        return f"{prefix}{name.translate(_ESCAPED)}{self._branch}{suffix}"

    def branches(self, count: int) -> list[StepPath]:
        """The paths of a gather's branches, in the order in which they were given."""
        self._num_gathers += 1
        prefix = branch_prefix(self._num_gathers)
        return [
            StepPath(self.text, self.name, f"{self._branch}[{prefix}{index}]")
            for index in range(count)
        ]

    def task_branch(self, first_step: str) -> StepPath:
        """The path of a task that the runtime did not start, named by a digest of its first step.

        Tasks with the same first step are numbered in the order in which they arrive.
        """
        branch = self.next_task_branch(first_step)
        self._names["task", first_step] += 1
        return branch

    def next_task_branch(self, first_step: str) -> StepPath:
        """The path that `task_branch` will return."""
        ordinal = self._names["task", first_step] + 1
        suffix = f":{ordinal}" if ordinal > 1 else ""
        return StepPath(self.text, self.name, f"{self._branch}[{TASK}{first_step}{suffix}]")

    def isolated(self, mark: str) -> StepPath:
        """A branch with steps that are numbered independently of all others that begin here."""
        return StepPath(self.text, self.name, f"{self._branch}[{mark}]")


def branch_prefix(number: int) -> str:
    """The prefix of branch indices in a path's n-th gather; the first has none."""
    return f"{number}:" if number > 1 else ""


def split_branch(key: str) -> tuple[str, str]:
    """A key without its innermost branch mark, and that mark; "" if it has none."""
    if not key.endswith("]"):
        return key, ""
    start = key.rindex("[")
    return key[:start], key[start + 1 : -1]


def gather_number(mark: str) -> int | None:
    """Which gather of its path a branch mark belongs to, from 1; None: it is no gather's."""
    match = re.fullmatch(r"(?:(\d+):)?\d+", mark)
    return None if match is None else int(match[1] or 1)


def parent_key(path: str) -> str:
    """The key (`StepPath.key`) of the path that a step began from."""
    above, _, last = path.rpartition("/")
    branch = last[last.index("[") :].partition("#")[0] if "[" in last else ""
    return f"{above}/{branch}" if above else branch


def is_in_wrap_up(path: str) -> bool:
    """Whether a step began in the wrap-up of the run itself, not of a flow within it."""
    return f"[{WRAP_UP}]" in path.partition("/")[0]


def paths_to(path: str) -> list[str]:
    """A step's path and the paths of all steps around it, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def is_within(path: str, name: str) -> bool:
    """Whether a step of this name is around the step with this path."""
    escaped = name.translate(_ESCAPED)
    return any(re.split(r"[\[#]", part, maxsplit=1)[0] == escaped for part in path.split("/")[:-1])


def checked_name(name: str) -> str:
    """The name, if a database can store it unchanged.

    Raises:
        ValueError: it contains NUL or a lone surrogate, which databases do not accept.
    """
    if "\x00" in name or any("\ud800" <= character <= "\udfff" for character in name):
        raise ValueError(
            f"the name {name!r} contains a character that cannot be stored"
            " (NUL or a lone surrogate): remove it"
        )
    return name
