"""The `orchestrate` command: assembles its subcommands and turns errors into exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.core import TyperGroup

from cli.commands import (
    answer,
    apply,
    bench,
    cancel,
    changes,
    checkpoints,
    discard,
    doctor,
    fork,
    gc,
    logs,
    patterns,
    resume,
    run,
    runs,
    shell,
    watch,
)
from cli.commands.queues import manage, submit, worker
from cli.commands.servers import gateway, serve
from cli.errors import StdoutClosed
from cli.failures import MEANINGS, exit_code_of, first_cause, message_of, wants_traceback
from cli.terminal.output import (
    complain,
    named_stdout_errors,
    say_verbatim,
    tolerate_any_output,
)

_EXIT_CODES = "\n".join(f"{code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())

_COMMAND_ORDER = (
    "run",
    "submit",
    "worker",
    "queue",
    "resume",
    "fork",
    "answer",
    "cancel",
    "ps",
    "show",
    "logs",
    "watch",
    "checkpoints",
    "diff",
    "changeset",
    "apply",
    "discard",
    "shell",
    "patterns",
    "bench",
    "gc",
    "doctor",
    "serve",
    "gateway",
)


class _OrderedGroup(TyperGroup):
    """Lists the commands in the order in which a new user needs them."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """All commands; Typer by itself would list groups last."""
        return sorted(self.commands, key=_COMMAND_ORDER.index)


app = typer.Typer(
    name="orchestrate",
    cls=_OrderedGroup,
    help="Run agent workflows on models that you host; the engine schedules them by deadline.",
    epilog=(
        'Example: orchestrate run deep-research "What is a sub-deadline?" --corpus docs '
        "--deadline 60s\n\n"
        "Options of the engine and the store can also be set as environment variables: "
        "ORCHESTRATE_MODEL, ORCHESTRATE_ENGINE, ORCHESTRATE_STORE and so on.\n\n"
        "[bold]Exit codes[/bold]\n" + _EXIT_CODES
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(run.app, name="run")
app.add_typer(submit.app, name="submit")
app.command(epilog=worker.EPILOG)(worker.worker)
app.add_typer(manage.app, name="queue")
app.command(epilog=resume.EPILOG)(resume.resume)
app.command(epilog=fork.EPILOG)(fork.fork)
app.command(epilog=answer.EPILOG)(answer.answer)
app.command(epilog=cancel.EPILOG)(cancel.cancel)
app.command(epilog="Example: orchestrate ps --status failed --user alice --tag team=sea --limit 5")(
    runs.ps
)
app.command(epilog="Example: orchestrate show 3f2a --calls")(runs.show)
app.command(epilog=logs.EPILOG)(logs.logs)
app.command(epilog=watch.EPILOG)(watch.watch)
app.command(epilog=checkpoints.EPILOG)(checkpoints.checkpoints)
app.command(epilog=changes.DIFF_EPILOG)(changes.diff)
app.command(epilog=changes.CHANGESET_EPILOG)(changes.changeset)
app.command(epilog=apply.EPILOG)(apply.apply)
app.command(epilog=discard.EPILOG)(discard.discard)
app.command(epilog=shell.EPILOG)(shell.shell)
app.add_typer(patterns.app, name="patterns")
app.command(epilog=bench.EPILOG)(bench.bench)
app.command(epilog=gc.EPILOG)(gc.gc)
app.command(epilog="Example: orchestrate doctor --engine")(doctor.doctor)
app.command(epilog=serve.EPILOG)(serve.serve)
app.command(epilog=gateway.EPILOG)(gateway.gateway)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        typer.echo(f"orchestrate {version('orchestrate-llm')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options of the command itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line (default: sys.argv), then exit with its documented code."""
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    tolerate_any_output()
    try:
        with named_stdout_errors():
            app(command_line)
    except (Exception, KeyboardInterrupt) as error:
        if not isinstance(first_cause(error), StdoutClosed):
            if wants_traceback(command_line):
                import traceback

                say_verbatim("".join(traceback.format_exception(first_cause(error))).rstrip())
            complain(message_of(error))
        sys.exit(exit_code_of(error))
