"""Which state a command line means: `RUN`, `RUN@CHECKPOINT`, `RUN@STEP`, or a state's id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cli.errors import BadInput
from cli.reading.store_reader import NO_RUNS
from orchestrator.durability.outcomes import end_of
from orchestrator.environment.states.past_states import PastStates, read_past_states
from store.errors import RunAmbiguous, RunNotFound
from store.printable_text import one_line
from store.records import RunRecord
from store.unit_of_work import Transaction

MIN_STATE_CHARACTERS = 6
_MOST_NAMED = 10
_DIGEST_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class NamedState:
    """A state that a command line names.

    Attributes:
        text: how it was named.
        state: its id.
        run: of which it is; None: it was named by its own id.
        workspace: of the run; None if it is not recorded which.
        others: further workspaces of the run.
    """

    text: str
    state: str
    run: RunRecord | None = None
    workspace: str | None = None
    others: Sequence[str] = ()


async def find_state(tx: Transaction, text: str, workspace: str | None = None) -> NamedState:
    """The state that a command line names.

    Args:
        workspace: of the run; None: the first one that it has begun.
    Raises:
        BadInput: it names none, or several; the message lists what there is.
        RunNotFound, RunAmbiguous: the part before the @ names no run, or several.
    """
    before, at, place = text.partition("@")
    if at or not text:
        run = await (tx.runs.find(before) if before else tx.runs.latest())
        if run is None:
            raise BadInput(NO_RUNS)
        return state_of_run(await read_past_states(tx, run), text, place, workspace)
    run, ambiguous = None, None
    try:
        run = await tx.runs.find(text)
    except RunNotFound:
        pass
    except RunAmbiguous as error:
        ambiguous = error
    states = await _states_like(tx, text)
    if run is not None and (run.id == text or not states):
        return state_of_run(await read_past_states(tx, run), text, "", workspace)
    if ambiguous is not None:
        raise ambiguous
    if len(states) == 1 and run is None:
        if workspace is not None:
            raise BadInput(f"--workspace is of a run, and {text} is a state")
        return NamedState(text, states[0])
    raise BadInput(_not_one(text, run, states))


def state_of_run(
    past: PastStates, text: str, place: str, workspace: str | None = None
) -> NamedState:
    """The state of a run at a checkpoint or step; its last one if `place` is "".

    Args:
        text: how the state was named.
    Raises:
        BadInput: there is no such place or workspace.
    """
    names = workspaces_of(past)
    if workspace is not None and workspace not in names:
        raise BadInput(
            f"run {past.run.id} has no workspace {workspace}: {_listed('it has', names, 'none')}"
        )
    if place:
        found, state = _at(past, place, workspace)
    else:
        found = workspace or (names[0] if names else None)
        state = _last(past, found)
    others = tuple(name for name in names if name != found)
    return NamedState(text, state, past.run, found, others)


def workspaces_of(past: PastStates) -> list[str]:
    """The names of a run's workspaces and forks, in the order of their first actions."""
    steps = sorted(past.steps, key=lambda step: (step.started_s, step.place))
    return list(dict.fromkeys(step.workspace for step in steps if step.workspace is not None))


def _last(past: PastStates, workspace: str | None) -> str:
    """The last state of a workspace; of a run without actions, the one in which it began."""
    for step in sorted(past.steps, key=end_of, reverse=workspace is not None):
        state = step.state_after or step.state_before
        if state is not None and step.workspace == workspace:
            return state
    raise BadInput(f"run {past.run.id} has no workspace, so no states")


def _at(past: PastStates, place: str, workspace: str | None) -> tuple[str | None, str]:
    """The workspace and the state at a checkpoint, or else after a step."""
    marked = [(each.workspace, each.state) for each in past.checkpoints if each.name == place]
    ours = [each for each in marked if each[0] == workspace] or marked
    if ours:
        _require_one_workspace(place, [name for name, _ in ours])
        return ours[-1]
    for step in past.steps:
        if step.path == place and (state := step.state_after or step.state_before) is not None:
            return step.workspace, state
    raise BadInput(_no_place(past, place))


def _require_one_workspace(place: str, names: Iterable[str]) -> None:
    different = list(dict.fromkeys(names))
    if len(different) > 1:
        listed = ", ".join(map(one_line, different))
        raise BadInput(
            f"several workspaces have a checkpoint {place}: say which one by --workspace ({listed})"
        )


def _no_place(past: PastStates, place: str) -> str:
    checkpoints = [each.name for each in past.checkpoints if each.name]
    steps = [step.path for step in past.steps if step.state_after is not None]
    return (
        f"run {past.run.id} has no checkpoint and no step {place} with a state: "
        f"{_listed('checkpoints are', checkpoints, 'there are no checkpoints')}; "
        f"{_listed('steps are', steps, 'no step has a state')}"
    )


async def _states_like(tx: Transaction, text: str) -> list[str]:
    if not re.fullmatch(f"[0-9a-f]{{{MIN_STATE_CHARACTERS},{_DIGEST_CHARACTERS}}}", text):
        return []
    return [state.id for state in await tx.states.starting_with(text, limit=_MOST_NAMED)]


def _not_one(text: str, run: RunRecord | None, states: Sequence[str]) -> str:
    if not states:
        short = len(text) < MIN_STATE_CHARACTERS and re.fullmatch("[0-9a-f]+", text)
        hint = f" (of a state, give at least {MIN_STATE_CHARACTERS} characters)" if short else ""
        return (
            f"no run's id and no state's id begins with {text!r}{hint}: `orchestrate ps` lists the "
            "runs, `orchestrate checkpoints RUN` draws the states of one"
        )
    found = [*([] if run is None else [f"run {run.id}"]), *(f"state {each}" for each in states)]
    return f"{text!r} is the beginning of several ids: {', '.join(found)}. Give more characters"


def _listed(words: str, names: Iterable[str], otherwise: str) -> str:
    different = list(dict.fromkeys(names))
    if not different:
        return otherwise
    named = ", ".join(map(one_line, different[:_MOST_NAMED]))
    more = len(different) - _MOST_NAMED
    return f"{words} {named}" + (f" and {more} more" if more > 0 else "")
