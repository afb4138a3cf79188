"""A command for each flow: a pipeline by its name, or a user's own flow by file or module."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from rich.markup import escape
from typer.core import TyperGroup

if TYPE_CHECKING:
    from agents.pipeline import Pipeline
    from cli.work.flow_arguments import FlowParameter

Given = Mapping[str, Any]
"""The options of a command that are not the flow's own, by name."""


class FlowCommands(TyperGroup):
    """Each pipeline is a command, and so is every reference to a flow.

    Attributes:
        options: those of each command beside the flow's parameters: name -> type and default.
    """

    options: ClassVar[Mapping[str, tuple[Any, object]]] = {}

    @staticmethod
    def act(pipeline: Pipeline[Any], own: Mapping[FlowParameter, Any], given: Given) -> None:
        """What the command does.

        Args:
            own: the flow's parameters that were given, each as it was typed.
            given: the other options.
        """
        raise NotImplementedError

    def list_commands(self, ctx: Any) -> list[str]:
        """The installed pipelines."""
        from cli.work.pipelines import pipelines

        return list(pipelines())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a pipeline or flow."""
        from cli.errors import BadInput
        from cli.work.pipelines import find_pipeline, pipelines

        pipeline = find_pipeline(cmd_name)
        if pipeline is None:
            raise BadInput(
                f"no pipeline {cmd_name!r}: there is {', '.join(pipelines()) or 'none'};"
                " a flow of your own is named as path/to/file.py:flow or module:flow"
            )
        return self._command_of(cmd_name, pipeline)

    def _command_of(self, name: str, pipeline: Pipeline[Any]) -> Any:
        """The command of a flow; its options are the flow's parameters and those of this group."""
        from cli.commands.options import deadline_option
        from cli.work.flow_arguments import parameters_of, summary_of
        from orchestrator.durations import shown

        taken = {"help", *(each.replace("_", "-") for each in self.options)}
        parameters = parameters_of(pipeline.flow, taken=taken)
        act = type(self).act

        def command(**given: Any) -> None:
            own = {each: given[_key(each)] for each in parameters}
            others = {each: given[each] for each in self.options}
            act(pipeline, {each: typed for each, typed in own.items() if typed is not None}, others)

        signature = [
            _keyword(_key(each), *_option_of(each, is_argument=each.name == pipeline.argument))
            for each in parameters
        ]
        own_s = pipeline.flow.deadline_s
        options = dict(self.options)
        if own_s is not None:
            options["deadline"] = (deadline_option(shown(own_s)), None)
        signature += [_keyword(each, *option) for each, option in options.items()]
        vars(command)["__signature__"] = inspect.Signature(signature)
        command.__annotations__ = {each.name: each.annotation for each in signature}
        # A pipeline's own example is one of `orchestrate run`.
        example = pipeline.example.replace("orchestrate run", f"orchestrate {self.name}", 1)
        if "out" not in self.options:
            example = re.sub(r" --out \S+", "", example)
        alone = typer.Typer(
            rich_markup_mode="rich",
            add_completion=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        summary = escape(summary_of(pipeline.flow)) or None
        alone.command(name, help=summary, epilog=f"Example: {example}" if example else None)(
            command
        )
        return typer.main.get_command(alone)


def _key(parameter: FlowParameter) -> str:
    """The name of a flow's parameter among those of the command."""
    return f"flow_{parameter.name}"


def _keyword(name: str, annotation: Any, default: object) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _option_of(parameter: FlowParameter, *, is_argument: bool) -> tuple[Any, object]:
    """Type and default of the command's parameter that stands for a flow's parameter."""
    from cli.work.flow_arguments import Shape

    kind: Any = {Shape.FLAG: bool, Shape.REPEATED: list[str]}.get(parameter.shape, str)
    default = inspect.Parameter.empty if parameter.is_required else parameter.typed_default
    if is_argument:
        argument = typer.Argument(metavar=parameter.option.upper(), help=escape(parameter.help))
        return Annotated[kind, argument], default
    flag = f"--{parameter.option}"
    if parameter.shape is Shape.FLAG:
        flag = f"{flag}/--no-{parameter.option}"
    option = typer.Option(
        flag,
        metavar=None if parameter.shape is Shape.FLAG else parameter.metavar,
        help=escape(parameter.help),
        show_default=parameter.shown_default or True,
    )
    return Annotated[kind if parameter.is_required else kind | None, option], default
