"""`orchestrate apply`: write what a run changed to the folder itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands import options

if TYPE_CHECKING:
    from orchestrator.environment.merging.apply_plan import ApplyPlan
    from orchestrator.environment.state_applying import Applied

EPILOG = (
    "Example: orchestrate apply 3f2a\n\n"
    "See first what would be written: orchestrate apply 3f2a --dry-run\n\n"
    "What is replaced is kept as a state; the command says how to bring it back. Nothing is "
    "written if somebody has changed the same files since the workspace began."
)

_MOST_SHOWN = 20


def apply(
    run: Annotated[str, typer.Argument(metavar="RUN[@STEP]", help=options.STATE)],
    git: Annotated[bool, typer.Option("--git", help="Also write changes below .git.")] = False,
    yes: options.Yes = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be written.")
    ] = False,
    workspace: options.WorkspaceName = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Write what a run changed in its workspace to the folder itself, all of it or nothing."""
    import asyncio

    from cli.terminal.confirming import confirm
    from cli.terminal.output import print_json, say, warn
    from cli.work.former_states import record_former
    from cli.work.stored_states import find_states
    from orchestrator.durability.liveness import status_shown
    from orchestrator.environment.state_applying import apply_state, plan_of
    from orchestrator.settings import read_settings
    from store.records import Status

    settings = read_settings(store=store)
    (named,), home = find_states(settings, [run], workspace)
    state = home.states.get(named.state)
    plan = plan_of(home, state, git=git)
    if not json:
        _print_plan(plan)
    if not plan:
        say(f"nothing to write: {plan.base} is as the state shows it")
    else:
        _say_of(plan)
        if named.run is not None and status_shown(named.run) == Status.RUNNING:
            warn(f"run {named.run.id} is still running, and sees in its workspace what is written")
    applied = None
    if plan and not dry_run:
        confirm(f"Write this to {plan.base}?", is_given=yes)
        applied = apply_state(home, state, git=git, plan=plan)
        undo = f"orchestrate apply {applied.former[:12]}{' --git' if git else ''}"
        say(f"written to {plan.base}; to undo it: {undo}")
        if asyncio.run(record_former(settings.store, home, named, applied)) is None:
            say("no run keeps the former state: a later `orchestrate gc` removes it")
    if json:
        print_json(_document(plan, applied))


def _print_plan(plan: ApplyPlan) -> None:
    from rich.text import Text

    from cli.terminal.output import print_line, stdout_console
    from store.printable_text import one_line

    console = stdout_console()
    styles = {"add": "green", "replace": "", "delete": "red", "mode": ""}
    for each in plan.operations:
        line = f"{each.action:<7}  {one_line(each.path)}"
        if each.action == "mode" and each.before is not None and each.after is not None:
            line += f"  {each.before.mode:04o} -> {each.after.mode:04o}"
        print_line(console, Text(line, style=styles[each.action]))


def _say_of(plan: ApplyPlan) -> None:
    from cli.terminal.output import say

    if plan.left_out:
        say(f"left out, as it is below .git (--git applies it): {_listed(plan.left_out)}")
    if plan.changed_elsewhere:
        say(
            f"changed in the folder meanwhile, and left as it is: {_listed(plan.changed_elsewhere)}"
        )


def _listed(paths: tuple[str, ...]) -> str:
    from store.printable_text import one_line

    more = len(paths) - _MOST_SHOWN
    shown = ", ".join(map(one_line, paths[:_MOST_SHOWN]))
    return shown + (f" and {more} more" if more > 0 else "")


def _document(plan: ApplyPlan, applied: Applied | None) -> dict[str, Any]:
    return {
        "base": plan.base,
        "is_applied": applied is not None,
        "added": plan.paths("add"),
        "replaced": plan.paths("replace"),
        "deleted": plan.paths("delete"),
        "mode_changed": plan.paths("mode"),
        "left_out": plan.left_out,
        "changed_elsewhere": plan.changed_elsewhere,
        "former": None if applied is None else applied.former,
    }
