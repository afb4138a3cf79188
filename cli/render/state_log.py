"""The state graph of a run as text, a line for each state, the first one first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from cli.render.describe import STATUS_STYLES, short_ids
from orchestrator.display.branch_lines import BranchLine, branch_lines
from orchestrator.display.glyphs import ASCII, ASCII_BRANCHES, UNICODE, UNICODE_BRANCHES
from orchestrator.display.run_text import counted
from orchestrator.durations import shown
from orchestrator.environment.states.past_states import PastStates
from store.printable_text import one_line
from store.state_records import EdgeKind, Revertibility, StateEdgeRecord

MAX_BRANCHES = 24
"""With more branches side by side, each line names the state before it instead."""

NO_WORKSPACE = "it has no workspace, so there are no states to show"

_MARKS = {
    Revertibility.EXTERNAL: "! external",
    Revertibility.NOT_REVERTIBLE: "! not revertible",
}


@dataclass(slots=True)
class _StateLine:
    """What is shown of a state.

    Attributes:
        arrivals: edges from states above.
        returns: edges to states above.
        loops: edges to the state itself.
    """

    names: list[str]
    arrivals: list[StateEdgeRecord] = field(default_factory=list)
    returns: list[StateEdgeRecord] = field(default_factory=list)
    loops: list[StateEdgeRecord] = field(default_factory=list)


def state_log(past: PastStates, status: str, *, ascii_only: bool = False) -> list[Text]:
    """The lines: the run, its states, and what the marks mean.

    Args:
        status: of the run, as it is shown.
    """
    glyphs = ASCII if ascii_only else UNICODE
    dot = f" {glyphs.dot} "
    lines = _state_lines(past)
    title = Text.assemble(
        ("run ", "dim"),
        (past.run.id, "bold"),
        dot,
        one_line(past.run.flow),
        dot,
        (status, STATUS_STYLES.get(status, "")),
    )
    if not lines:
        return [title, Text(NO_WORKSPACE)]
    bases = sorted({one_line(state.base) for state in past.states})
    numbers = [counted(len(lines), "state"), counted(len(past.checkpoints), "checkpoint")]
    heading = Text(dot.join([*bases, ", ".join(numbers)]), style="dim")
    short = dict(zip(lines, short_ids(list(lines)), strict=True))
    drawn, has_branches = _branches(lines, ascii_only=ascii_only)
    body = [
        Text(each.text)
        if each.node is None
        else Text(dot).join(
            [
                Text(f"{each.text} ") + _name(lines[each.node], short[each.node]),
                *_origin(past, each.node, lines[each.node], short, has_branches=has_branches),
                *_parts(lines[each.node], short),
            ]
        )
        for each in drawn
    ]
    return [title, heading, Text(), *body, *_legend(lines, has_branches=has_branches)]


def _state_lines(past: PastStates) -> dict[str, _StateLine]:
    """State -> what is shown of it, in the order of the lines."""
    graph = past.graph()
    place = {state: number for number, state in enumerate(graph)}
    lines = {
        state: _StateLine(
            [one_line(name) for name in data["checkpoints"]]
            + [f"@{one_line(name)}" for name in data["workspaces"]]
        )
        for state, data in graph.nodes(data=True)
    }
    for edge in past.edges:
        if edge.before == edge.after:
            lines[edge.before].loops.append(edge)
        elif place[edge.before] < place[edge.after]:
            lines[edge.after].arrivals.append(edge)
        else:
            lines[edge.before].returns.append(edge)
    return lines


def _branches(
    lines: Mapping[str, _StateLine], *, ascii_only: bool
) -> tuple[Sequence[BranchLine], bool]:
    """The drawing, and whether it has branches; else there would be too many."""
    glyphs = ASCII_BRANCHES if ascii_only else UNICODE_BRANCHES
    children: dict[str, dict[str, None]] = {}
    for state, shown_state in lines.items():
        for edge in shown_state.arrivals:
            children.setdefault(edge.before, {})[state] = None
    below = {state: list(following) for state, following in children.items()}
    drawn = []
    for line in branch_lines(list(lines), below, glyphs):
        if (len(line.text) + 1) // 2 > MAX_BRANCHES:
            return [BranchLine(glyphs.node, state) for state in lines], False
        drawn.append(line)
    return drawn, True


def _name(line: _StateLine, short: str) -> Text:
    """The id of a state, its checkpoints and the workspaces in it."""
    name = Text(short, style="bold yellow")
    return name.append(f" ({', '.join(line.names)})", "bold green") if line.names else name


def _origin(
    past: PastStates,
    state: str,
    line: _StateLine,
    short: Mapping[str, str],
    *,
    has_branches: bool,
) -> list[Text]:
    """Where a state comes from, if neither the drawing nor an edge shows it."""
    if line.arrivals:
        before = short[line.arrivals[0].before]
        return [] if has_branches else [Text(f"after {before}", style="dim")]
    opening = [step for step in past.steps if step.state_after == state and not step.state_before]
    return [Text(one_line(step.path)) for step in opening[:1]]


def _parts(line: _StateLine, short: Mapping[str, str]) -> Iterator[Text]:
    """What led to a state, and what happened there."""
    by_step: dict[tuple[str, EdgeKind], StateEdgeRecord] = {}
    for edge in line.arrivals:
        by_step.setdefault((edge.path, edge.kind), edge)
    for number, edge in enumerate(by_step.values()):
        yield Text(_step_of(edge))
        yield Text(shown(edge.seconds), style="dim")
        if edge.num_changed and number == 0:  # against the state to which its branch leads
            num_written = edge.num_changed - edge.num_added - edge.num_removed
            yield Text.assemble(
                (f"+{edge.num_added:,}", "green"),
                (f" ~{num_written:,}", "yellow"),
                (f" -{edge.num_removed:,}", "red"),
            )
        if mark := _MARKS.get(edge.attribute):
            yield Text(mark, style="bold red")
    for edge in line.loops:
        if mark := _MARKS.get(edge.attribute):
            yield Text(f"{mark}: {_step_of(edge)}", style="bold red")
    for edge in line.returns:
        yield Text(f"back to {short[edge.after]}: {_step_of(edge)}", style="cyan")
        if mark := _MARKS.get(edge.attribute):
            yield Text(mark, style="bold red")
    num_idle = sum(
        edge.kind is EdgeKind.ACTION and edge.attribute not in _MARKS for edge in line.loops
    )
    if num_idle:
        yield Text(f"{counted(num_idle, 'action')} changed nothing", style="dim")


def _step_of(edge: StateEdgeRecord) -> str:
    """The step of an edge, and what it did, if that is no action and its name does not say so."""
    path = one_line(edge.path)
    is_said = edge.kind is EdgeKind.ACTION or path.rpartition("/")[2].startswith(edge.kind)
    return path if is_said else f"{path} ({edge.kind})"


def _legend(lines: Mapping[str, _StateLine], *, has_branches: bool) -> list[Text]:
    """What those of the marks mean that were used."""
    marks = []
    if any(edge.num_changed for line in lines.values() for edge in line.arrivals):
        marks.append("+new ~changed -removed files")
    if any(name.startswith("@") for line in lines.values() for name in line.names):
        marks.append("@ where a workspace was last")
    edges = [
        edge for line in lines.values() for edge in (*line.arrivals, *line.loops, *line.returns)
    ]
    if any(edge.attribute in _MARKS for edge in edges):
        marks.append("! what a rewind does not undo")
    if not has_branches:
        marks.append("too many branches to draw: a line names the state before it")
    return [Text(), Text("   ".join(marks), style="dim")] if marks else []
