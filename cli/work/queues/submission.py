"""Submits a flow from the command line, and says what is known of its deadline."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agents.pipeline import Pipeline
from cli.errors import BadInput
from cli.terminal.output import print_json, print_text, say
from cli.terminal.warnings import log_as_warnings
from cli.work.flow_arguments import FlowParameter, bound
from orchestrator.durations import shown
from orchestrator.runtime.submission import Submitted
from orchestrator.settings import read_settings
from orchestrator.wiring import open_runtime


async def submit(
    pipeline: Pipeline[Any], own: Mapping[FlowParameter, Any], given: Mapping[str, Any]
) -> None:
    """Submit a pipeline's flow, or record a schedule for it.

    Args:
        own: the flow's parameters that were given, each as it was typed.
        given: the options of `orchestrate submit`.
    Raises:
        BadInput, InvalidQueueOption, InvalidCron, InvalidDuration and what `Runtime.submit` raises.
    """
    if (given["cron"] is None) != (given["schedule"] is None):
        raise BadInput("give --cron and --schedule together, or neither")
    call = bound(pipeline.flow, {each.name: each.read(typed) for each, typed in own.items()})
    if pipeline.check is not None:
        pipeline.check(call.arguments)
    flow = pipeline.flow.options(deadline=given["deadline"], user=given["user"]).queued(
        given["queue"],
        priority=given["priority"],
        not_before=_moment(given["not_before"]),
        key=given["key"],
        attempts=given["attempts"],
        retry=given["retry"],
    )
    async with log_as_warnings(), open_runtime(read_settings(store=given["store"])) as runtime:
        if given["cron"] is not None:
            first = await runtime.schedule(
                flow,
                given["schedule"],
                given["cron"],
                timezone=given["timezone"],
                arguments=call.arguments,
            )
            _show_schedule(given, first)
        else:
            _show(await runtime.submit(flow, *call.args, **call.kwargs), as_json=given["json"])


def _moment(typed: str | None) -> datetime | str | None:
    """A moment with its zone, or a time from now."""
    if typed is None:
        return None
    try:
        return datetime.fromisoformat(typed)
    except ValueError:
        return typed


def _show_schedule(given: Mapping[str, Any], first: datetime) -> None:
    if given["json"]:
        print_json({"schedule": given["schedule"], "next_at": first.isoformat()})
    else:
        say(f"schedule {given['schedule']}: first at {first:%Y-%m-%d %H:%M %Z}")


def _show(submitted: Submitted, *, as_json: bool) -> None:
    """Print the run's id on stdout, and what is known of it on stderr."""
    bound_ = submitted.feasibility.bound
    if as_json:
        print_json(
            {
                "run": submitted.run_id,
                "queue": submitted.queue,
                "is_new": submitted.is_new,
                "num_ahead": submitted.num_ahead,
                "deadline_s": submitted.feasibility.deadline_s,
                "shortest_past_run_s": None if bound_ is None else bound_.seconds,
                "is_feasible": submitted.feasibility.is_feasible,
            }
        )
        return
    print_text(submitted.run_id)
    if not submitted.is_new:
        say(f"run {submitted.run_id} has this key and is not over yet: nothing was submitted")
        return
    say(f"run {submitted.run_id} waits in queue {submitted.queue}, {submitted.num_ahead} before it")
    say(_feasibility_text(submitted))


def _feasibility_text(submitted: Submitted) -> str:
    deadline_s, found = submitted.feasibility
    if deadline_s is None:
        return "it has no deadline"
    if found is None:
        return f"deadline {shown(deadline_s)}: too few past runs to say whether it can be met"
    verdict = "can be met" if submitted.feasibility.is_feasible else "cannot be met"
    return (
        f"deadline {shown(deadline_s)} {verdict}: the shortest of {found.runs} past runs took"
        f" {shown(found.seconds)}, without the time in the queue"
    )
