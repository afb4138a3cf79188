"""Lists queues, what waits in them, and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from cli.terminal.output import print_json, say, stdout_console
from orchestrator.durations import shown
from store.printable_text import one_line
from store.session import Store


async def show_queues(store: Store, *, as_json: bool) -> None:
    """Print all queues."""
    async with store.reading() as tx:
        counts = await tx.waiting.counts(wall=datetime.now(UTC))
    if as_json:
        print_json({"queues": [asdict(queue) | asdict(num) for queue, num in counts.items()]})
        return
    if not counts:
        say("no queues yet: orchestrate submit FLOW")
        return
    rows = []
    for queue, num in counts.items():
        state = "paused" if queue.is_paused else "drained" if queue.is_draining else "open"
        limits = [queue.max_running, queue.max_running_of_user]
        rows.append(
            [
                queue.name,
                state,
                f"{num.num_queued:,}" + (f" ({num.num_later:,} later)" if num.num_later else ""),
                f"{num.num_running:,}",
                f"{num.num_dead:,}",
                *("-" if limit is None else f"{limit:,}" for limit in limits),
            ]
        )
    _print_table(["queue", "is", "waiting", "running", "dead", "max", "max per user"], rows)


async def show_waiting(store: Store, queue: str, *, limit: int, as_json: bool) -> None:
    """Print the runs that wait in a queue, the next first."""
    now = datetime.now(UTC)
    async with store.reading() as tx:
        runs = await tx.waiting.of(queue, limit=limit)
    if as_json:
        print_json({"runs": [asdict(run) for run in runs]})
        return
    if not runs:
        say(f"nothing waits in queue {queue}")
        return
    rows = []
    for run in runs:
        left_s = None
        if run.deadline_s is not None:
            left_s = run.deadline_s - (now - run.started_at).total_seconds()
        later = run.not_before is not None and run.not_before > now
        rows.append(
            [
                run.id,
                one_line(run.flow),
                f"{run.priority}",
                "-" if left_s is None else shown(left_s),
                one_line(run.slo_user) or "-",
                run.code_version or "-",
                f"{run.not_before:%Y-%m-%d %H:%M}" if later else "now",
            ]
        )
    _print_table(["run", "flow", "priority", "time left", "user", "code", "not before"], rows)


async def show_schedules(store: Store, *, as_json: bool) -> None:
    """Print the schedules."""
    async with store.reading() as tx:
        schedules = await tx.schedules.all()
    if as_json:
        documents = [asdict(each) for each in schedules]
        for document in documents:
            del document["arguments"]
        print_json({"schedules": documents})
        return
    if not schedules:
        say("no schedules yet: orchestrate submit FLOW --schedule NAME --cron '30 2 * * *'")
        return
    rows = [
        [
            each.name,
            one_line(each.flow),
            each.queue,
            f"{each.cron} {each.timezone}",
            f"{each.next_at:%Y-%m-%d %H:%M} UTC",
        ]
        for each in schedules
    ]
    _print_table(["schedule", "flow", "queue", "times", "next"], rows)


def _print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    stdout_console().print(table)
