"""Converts a run's events to OpenTelemetry spans, by the semantic conventions for generative AI.

The names are those of github.com/open-telemetry/semantic-conventions-genai as of November 2026, all
in development. Attributes without a convention begin with `orchestrate.`. No span holds a prompt,
an answer or the message of an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

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

# The provider names of the conventions, by engine; other engines keep their own names.
_PROVIDERS = {"embedded": "vllm", "remote": "openai"}

_TRACE_CONTEXT = TraceContextTextMapPropagator()

Value = str | int | float | Sequence[str] | None


class RunSpans:
    """A listener that makes a span for each run, for the steps in it and for the calls in these.

    A span's parent is found by the path of its step or call, not by the current task.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._runs: dict[str, _Run] = {}

    def __call__(self, event: Event) -> None:
        """Begin or end the span of an event."""
        if isinstance(event, RunStarted):
            self._run_started(event)
            return
        run = self._runs.get(event.run_id)
        if run is None:  # an event of work that outlived its run
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

    def headers_of(self, run_id: str, path: str) -> dict[str, str]:
        """The headers traceparent and tracestate of a request that the call or step here sends."""
        headers: dict[str, str] = {}
        if (run := self._runs.get(run_id)) is not None:
            _TRACE_CONTEXT.inject(headers, run.within.get(path) or run.parent_of(path))
        return headers

    def close(self) -> None:
        """End the spans that are still open, as of runs with ends that could not be recorded."""
        for run in self._runs.values():
            run.end(None)
        self._runs.clear()

    def _run_started(self, event: RunStarted) -> None:
        if former := self._runs.pop(event.run_id, None):  # its end could not be recorded
            former.end(None)
        parent = context.get_current()
        span = self._tracer.start_span(
            f"invoke_workflow {event.flow}",
            parent,
            SpanKind.INTERNAL,
            _without_none(
                {
                    "gen_ai.operation.name": "invoke_workflow",
                    "gen_ai.workflow.name": event.flow,
                    "orchestrate.run_id": event.run_id,
                    "orchestrate.deadline_s": event.deadline_s,
                }
            ),
        )
        self._runs[event.run_id] = _Run(span, parent, event.deadline_s)

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
                "orchestrate.engine": event.engine_name or None,
                "orchestrate.predicted_output_tokens": event.predicted_output_tokens,
            }
        elif event.model is not None:
            name = f"embeddings {event.model}"
            kind = SpanKind.CLIENT
            attributes |= {
                "gen_ai.operation.name": "embeddings",
                "gen_ai.provider.name": _PROVIDERS.get(event.engine or "", event.engine),
                "gen_ai.request.model": event.model,
                "orchestrate.engine": event.engine_name or None,
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
        if path in run.open:  # a step has one span, even if its start is reported twice
            return
        present = _without_none({"orchestrate.path": path, **attributes})
        span = self._tracer.start_span(name, run.parent_of(path), kind, present)
        run.open[path] = span
        run.within[path] = _child_context(span, run.parent)


@dataclass(slots=True)
class _Run:
    """The spans of a run in progress.

    Attributes:
        span: of the run itself.
        parent: the context in which the run was started.
        open: the spans that have not ended, by path.
        within: the contexts for child spans, by path; kept until the run ends, as tasks that a
            step left running may begin steps after its end.
        calls: the starts of calls that have not ended, by node.
    """

    span: Span
    parent: Context
    deadline_s: float | None
    open: dict[str, Span] = field(default_factory=dict)
    within: dict[str, Context] = field(default_factory=dict)
    calls: dict[int, CallStarted] = field(default_factory=dict)

    def parent_of(self, path: str) -> Context:
        """The context of the innermost step with a span around a path, or of the run."""
        for outer in reversed(paths_to(path)[:-1]):
            if outer in self.within:
                return self.within[outer]
        return _child_context(self.span, self.parent)

    def end(self, event: RunFinished | None) -> None:
        """End the run's span, and first those still open, innermost first, as still running."""
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
        run.within.pop(started.path, None)  # an LLM call has no children
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
    attributes = {"orchestrate.status": status, "error.type": error_type, **(attributes or {})}
    span.set_attributes(_without_none(attributes))
    if error_type is not None:
        span.set_status(StatusCode.ERROR)  # without the message, which may quote a user's text
    span.end()


def _without_none(attributes: Mapping[str, Value]) -> dict[str, str | int | float | Sequence[str]]:
    return {name: value for name, value in attributes.items() if value is not None}


def _child_context(span: Span, parent: Context) -> Context:
    """The context for a span's children; it holds the span's identity only, to save memory."""
    return trace.set_span_in_context(NonRecordingSpan(span.get_span_context()), parent)
