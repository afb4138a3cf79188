"""States of workspaces as commands find them: named on the command line, stored below a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from cli.errors import BadInput
from cli.reading.state_references import NamedState, find_state
from cli.reading.store_reader import store_with
from cli.terminal.output import say, warn
from orchestrator.environment.environments import Environments
from orchestrator.environment.files.base_listing import BaseListing, list_base
from orchestrator.environment.states.location import environments_place
from orchestrator.environment.states.stored_states import State
from orchestrator.settings import Settings
from store.printable_text import one_line

_MOST_SHOWN = 5


def find_states(
    settings: Settings, texts: Sequence[str], workspace: str | None = None
) -> tuple[list[NamedState], Environments]:
    """The states that a command line names, and where they lie.

    Says on stderr which one was taken if a run has several workspaces.

    Args:
        workspace: of the runs that it names; None: the first one that each has begun.
    Raises:
        BadInput, RunNotFound, RunAmbiguous: as `find_state`.
    """
    named = asyncio.run(_named(settings, texts, workspace))
    for each in named:
        if each.others and workspace is None and "@" not in each.text:
            others = ", ".join(map(one_line, each.others))
            say(
                f"workspace {each.workspace} of run {_id_of(each)}; with --workspace also: {others}"
            )
    return named, open_environments(settings)


def open_environments(settings: Settings) -> Environments:
    """Where the store's states lie; creates nothing.

    Raises:
        BadInput: there is no such folder.
    """
    place = environments_place(settings.store, settings.environments)
    if not place.root.is_dir():
        raise BadInput(
            f"there are no states at {place.root}: set ORCHESTRATE_ENVIRONMENTS to the folder that "
            "it named when the run was executed"
        )
    return Environments(place.root, store=place.store)


def warn_of_changes(home: Environments, *states: State) -> None:
    """Warn if the base of states has changed since their workspaces began.

    Raises:
        BadInput: the base cannot be read.
    """
    changed = sorted({path for state in states for path in _changed_since(home, state)})
    if changed:
        shown = ", ".join(map(one_line, changed[:_MOST_SHOWN]))
        more = len(changed) - _MOST_SHOWN
        warn(
            f"{states[0].base.path} has changed since the workspace began: {shown}"
            f"{f' and {more} more' if more > 0 else ''}; what the run did not change is shown as "
            "it is there now"
        )


def _changed_since(home: Environments, state: State) -> list[str]:
    try:
        listing = list_base(Path(state.base.path))
    except OSError as error:
        raise BadInput(f"the folder {state.base.path} cannot be read: {error.strerror}") from error
    if listing.identity == state.base.identity:
        return []
    return listing.changed_since(BaseListing.from_bytes(home.root.blobs.read(state.base.listing)))


async def _named(
    settings: Settings, texts: Sequence[str], workspace: str | None
) -> list[NamedState]:
    async with await store_with(settings.store, texts[0]) as store, store.reading() as tx:
        return [await find_state(tx, text, workspace) for text in texts]


def _id_of(named: NamedState) -> str:
    return "" if named.run is None else named.run.id
