"""Options of `orchestrate bench --suite` -> the names of its entries; checks the options."""

from __future__ import annotations

from collections.abc import Mapping

from cli.errors import BadInput
from serving.sim.compare.suite import SUITE


def suite_names(
    suite: bool, only: str | None, *, given: Mapping[str, bool]
) -> tuple[str, ...] | None:
    """The suite's entries to run, in its order; None if the suite is not asked for.

    Args:
        suite, only: the options.
        given: options and arguments that do not go with the suite -> whether they were given.
    Raises:
        BadInput: an option is given that does not go with these, or a name is unknown.
    """
    if not suite:
        if only is not None:
            raise BadInput(f"--only {only}: it chooses entries of --suite; give --suite too")
        return None
    for option, is_given in given.items():
        if is_given:
            raise BadInput(
                f"leave out {option}: --suite runs its own workloads, each with its own arrivals "
                "and prefix caching, simulated and without a chart; --only chooses some of them"
            )
    if only is None:
        return tuple(SUITE)
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in SUITE]
    if unknown or not names:
        problem = f"unknown: {', '.join(unknown)}" if unknown else "give at least one name"
        raise BadInput(f"--only {only!r}: {problem}; known: {', '.join(SUITE)}")
    return tuple(name for name in SUITE if name in names)
