"""What a run tells -> OpenTelemetry spans, by the semantic conventions for generative AI.

The names are those of github.com/open-telemetry/semantic-conventions-genai as of November 2026, all
in development; what they have no word for is under `orchestrate.`. No span holds a prompt, an
answer or the text of an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanKind, StatusCode, Tracer

from orchestrator.durability.identity import paths_to
from orchestrator.events import (
    CallFinished,
    CallStarted,
    Event,
    RunFinished,
    RunStarted,
    StepFinished,
    StepStarted,
)
from store.records import Status

# Whose format a call has, as the conventions call it; other engines go by their own names.
_PROVIDERS = {"embedded": "vllm", "remote": "openai"}

Value = str | int | float | Sequence[str] | None


class RunSpans:
    """Listens to runs and tells of them in spans: run, steps within, calls within these.

    What belongs to what is read from the paths of steps and calls, whichever task tells of them.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._runs: dict[str, _Run] = {}

    def __call__(self, event: Event) -> None:
        """Begin or end the span that an event is about."""
        if isinstance(event, RunStarted):
            self._run_started(event)
            return
        run = self._runs.get(event.run_id)
        if run is None:  # something was left running when its run ended
            return
        match event:
            case StepStarted():
                self._begin(run, event.path, event.name, {"orchestrate.run_id": event.run_id})
            case StepFinished():
                _end(run.open.pop(event.path, None), event.status, event.error_type)
            case CallStarted():
                self._call_started(run, event)
            case CallFinished():
                _call_finished(run, event)
            case RunFinished():
                del self._runs[event.run_id]
                run.end(event)

    def close(self) -> None:
        """End what is still open, as where the store failed and a run's end was not told."""
        for run in self._runs.values():
            run.end(None)
        self._runs.clear()

    def _run_started(self, event: RunStarted) -> None:
        if former := self._runs.pop(event.run_id, None):  # whose end could not be recorded
            former.end(None)
        around = context.get_current()
        span = self._tracer.start_span(
            f"invoke_workflow {event.flow}",
            around,
            SpanKind.INTERNAL,
            _given(
                {
                    "gen_ai.operation.name": "invoke_workflow",
                    "gen_ai.workflow.name": event.flow,
                    "orchestrate.run_id": event.run_id,
                    "orchestrate.deadline_s": event.deadline_s,
                }
            ),
        )
        self._runs[event.run_id] = _Run(span, around, event.deadline_s)

    def _call_started(self, run: _Run, event: CallStarted) -> None:
        attributes: dict[str, Value] = {
            "orchestrate.run_id": event.run_id,
            "orchestrate.stage": event.stage,
            "orchestrate.sub_deadline_s": event.sub_deadline_s,
            "orchestrate.sub_deadline_source": event.sub_deadline_source,
        }
        name, kind = f"execute_tool {event.identity}", SpanKind.INTERNAL
        if event.kind == "llm":
            name = f"chat {event.model}"
            if event.engine != "embedded":  # another process answers
                kind = SpanKind.CLIENT
            attributes |= {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": _PROVIDERS.get(event.engine or "", event.engine),
                "gen_ai.request.model": event.model,
                "orchestrate.predicted_output_tokens": event.predicted_output_tokens,
            }
        else:
            attributes |= {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": event.identity,
            }
        run.calls[event.node] = event
        self._begin(run, event.path, name, attributes, kind)

    def _begin(
        self,
        run: _Run,
        path: str,
        name: str,
        attributes: Mapping[str, Value],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        if path in run.open:  # a path is one step, however often it is told of
            return
        told = _given({"orchestrate.path": path, **attributes})
        span = self._tracer.start_span(name, run.parent_of(path), kind, told)
        run.open[path] = span
        run.within[path] = _within(span, run.around)


@dataclass(slots=True)
class _Run:
    """The spans of a run that goes on.

    Attributes:
        around: where the run was started.
        open: the spans that have not ended, by path.
        within: what their children begin in, by path; kept until the run ends, as what a step
            left running may begin something after it.
        calls: those that have not ended, by node.
    """

    span: Span
    around: Context
    deadline_s: float | None
    open: dict[str, Span] = field(default_factory=dict)
    within: dict[str, Context] = field(default_factory=dict)
    calls: dict[int, CallStarted] = field(default_factory=dict)

    def parent_of(self, path: str) -> Context:
        """Of the innermost step around a path that was told of; of the run itself without one."""
        for above in reversed(paths_to(path)[:-1]):
            if above in self.within:
                return self.within[above]
        return _within(self.span, self.around)

    def end(self, event: RunFinished | None) -> None:
        """End the run and what it left open, innermost first; nobody knows how that ended."""
        for span in reversed(self.open.values()):
            _end(span, Status.RUNNING, None)
        if event is None:
            _end(self.span, Status.RUNNING, None)
            return
        slack_s = None if self.deadline_s is None else self.deadline_s - event.elapsed_s
        attributes = {"orchestrate.slack_s": slack_s}
        _end(self.span, event.status, event.error_type, attributes)


def _call_finished(run: _Run, event: CallFinished) -> None:
    started = run.calls.pop(event.node, None)
    if started is None:
        return
    due_s = started.sub_deadline_s
    attributes: dict[str, Value] = {
        "orchestrate.slack_s": None if due_s is None else due_s - event.at_s
    }
    if started.kind == "llm":
        run.within.pop(started.path, None)  # nothing begins within it
        if event.status == Status.COMPLETED:
            reason = event.finish_reason
            attributes |= {
                "gen_ai.usage.input_tokens": event.prompt_tokens,
                "gen_ai.usage.output_tokens": event.output_tokens,
                "gen_ai.response.finish_reasons": None if reason is None else (reason,),
            }
    _end(run.open.pop(started.path, None), event.status, event.error_type, attributes)


def _end(
    span: Span | None,
    status: str,
    error_type: str | None,
    attributes: Mapping[str, Value] | None = None,
) -> None:
    if span is None:
        return
    told = {"orchestrate.status": status, "error.type": error_type, **(attributes or {})}
    span.set_attributes(_given(told))
    if error_type is not None:
        span.set_status(StatusCode.ERROR)  # without the error's message, which may quote a text
    span.end()


def _given(attributes: Mapping[str, Value]) -> dict[str, str | int | float | Sequence[str]]:
    return {name: value for name, value in attributes.items() if value is not None}


def _within(span: Span, around: Context) -> Context:
    """What a span's children begin in: its identity is enough, and light."""
    return trace.set_span_in_context(NonRecordingSpan(span.get_span_context()), around)
