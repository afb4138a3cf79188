"""Trace files of four published formats -> requests or workflows."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from serving.sim.programs.lengths import MAX_CALL_TOKENS
from serving.sim.programs.programs import Call, Stage
from serving.sim.workloads.trace_text import content_of, text_of
from serving.workload_errors import BadTrace

MAX_PROMPT_TOKENS = 1_000_000
"""Longest prompt of a call; more is taken to be an error in the file."""

MAX_ANSWER_TOKENS = MAX_CALL_TOKENS
"""Longest answer of a call, and the max_tokens of every call of a trace: policies see max_tokens,
so it must not depend on the call's length."""

MAX_STAGES = 256
"""Most stages of a workflow: each adds to its deadline, until which a run is observed."""

MAX_CALLS = 2048
"""Most calls of a workflow, each sample counted: capacity is measured on hundreds of workflows."""


class TraceRequest(NamedTuple):
    """One request of a trace of single calls.

    Attributes:
        arrival_s: seconds since the trace's first request.
        prompt_tokens, output_tokens: at least 1; the 0 of a failed request becomes 1.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


class Workflow(NamedTuple):
    """One run of a trace of compound programs; such traces have no times."""

    application: str
    stages: tuple[Stage, ...]


class LongestCall(NamedTuple):
    """The call of a file with the most tokens, and its place: a line, or a workflow."""

    place: str
    prompt_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of prompt and answer."""
        return self.prompt_tokens + self.output_tokens


class Trace(NamedTuple):
    """A file's content: requests in order of arrival, or workflows in the file's order.

    Attributes:
        longest: the longest call; the first if there are several.
        digest: of the bytes that were read.
    """

    requests: tuple[TraceRequest, ...] = ()
    workflows: tuple[Workflow, ...] = ()
    longest: LongestCall = LongestCall("", 0, 0)
    digest: str = ""


def read_trace(path: Path, *, digest: str | None = None) -> Trace:
    """Read a trace; the format is detected from the content.

    - Azure LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
    - Mooncake: JSON lines with timestamp (ms), input_length, output_length; hash_ids are not read.
    - Deep research (JITServe): a JSON object with workflows of stages of {state, requests}.
    - Tree of Thoughts: the same with {kind, calls}. A call of n samples becomes n calls with the
      same prompt and the call's output tokens each. The samples share their prompt with each other
      and with no other call.

    A prompt has at most MAX_PROMPT_TOKENS, an answer at most MAX_ANSWER_TOKENS; a workflow at most
    MAX_STAGES and MAX_CALLS.

    Args:
        digest: that the file must have; None: any.
    Raises:
        TraceMissing: there is no such file.
        BadTrace: it cannot be read (a second time), has changed, has an unknown format, or does
            not follow its format; the message names the place.
    """
    content = content_of(path)
    found = blake3(content).hexdigest()
    if digest not in (None, found):
        reason = "it changed while in use: start again, and do not change it until the end"
        raise BadTrace(str(path), reason)
    return _parsed(path, text_of(path, content))._replace(digest=found)


def _parsed(path: Path, text: str) -> Trace:
    """Detect the format and parse the text."""
    first_line = text.lstrip().split("\n", 1)[0]
    if set(_AZURE) <= set(_columns(first_line)):
        return _azure(path, text)
    if first_line.startswith("{"):
        names = _names(text, first_line)
        if names & {"input_length", "output_length"}:
            return _mooncake(path, text)
        if "workflows" in names:
            return _workflows(path, text)
        if "timestamp" in names:
            return _mooncake(path, text)
        if _json_object(first_line) is None:
            _parse(path, "it", text)  # raises an error that says where it is damaged
    reason = "it has none of the known formats: Azure CSV, Mooncake JSON lines, workflows in JSON"
    raise BadTrace(str(path), reason)


def _names(text: str, first_line: str) -> set[str]:
    """The field names of a JSON text's first object that determine the format."""
    first_object = _json_object(first_line)
    if first_object is not None:
        return set(first_object)
    # An object over several lines, or a damaged one: search for text that looks like a name.
    return set(re.findall(r'"(workflows)"\s*:', text) or re.findall(r'"(\w+)"\s*:', first_line))


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _columns(line: str) -> list[str]:
    """The column names in a CSV's first line; empty if the line is not CSV."""
    try:
        return [each.strip() for each in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:
        return []


def _azure(path: Path, text: str) -> Trace:
    reader = csv.reader(io.StringIO(text), strict=True, skipinitialspace=True)
    columns: list[str] = []
    rows = []
    number = 0
    try:
        for cells in reader:
            row, number = [cell.strip() for cell in cells], reader.line_num
            at = f"line {number}"
            if not row or row == [""]:
                continue
            if not columns:
                columns = _distinct(path, at, row)
                continue
            if len(row) != len(columns):
                raise BadTrace(str(path), f"{at}: it must have the columns of the first line")
            stamp, prompt, output = (row[columns.index(name)] for name in _AZURE)
            try:
                time = datetime.fromisoformat(stamp)
            except ValueError:
                reason = f"{at}: {_shortened_repr(stamp)} is not a time"
                raise BadTrace(str(path), reason) from None
            if time.tzinfo is None:
                time = time.replace(tzinfo=UTC)
            tokens = _prompt(path, at, prompt), _answer(path, at, output)
            rows.append((time.timestamp(), *tokens, number))
    except csv.Error as cause:
        raise BadTrace(str(path), f"after line {number}: {cause}") from cause
    return _by_arrival(path, rows)


def _distinct(path: Path, at: str, columns: list[str]) -> list[str]:
    for name in _AZURE:
        if columns.count(name) > 1:
            raise BadTrace(str(path), f"{at}: {columns.count(name)} columns are named {name}")
    return columns


def _mooncake(path: Path, text: str) -> Trace:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        at = f"line {number}"
        row = _parse(path, at, line)
        stamp = _field(path, at, row, "timestamp", (int, float))
        if not 0 <= stamp <= 1e15:  # also rejects NaN and huge integers
            raise BadTrace(str(path), f"{at}: timestamp must be milliseconds, at least 0")
        prompt, output = (
            tokens_of(path, f"{at}: {key}", _field(path, at, row, key, int))
            for key, tokens_of in (("input_length", _prompt), ("output_length", _answer))
        )
        rows.append((stamp / 1000.0, prompt, output, number))
    return _by_arrival(path, rows)


def _by_arrival(path: Path, rows: list[tuple[float, int, int, int]]) -> Trace:
    """A trace of rows (seconds, prompt tokens, answer tokens, line), sorted by time."""
    if not rows:
        raise BadTrace(str(path), "it has no requests")
    _, prompt, output, line = max(rows, key=lambda row: row[1] + row[2])
    rows.sort(key=lambda row: row[0])
    start_s = rows[0][0]
    return Trace(
        requests=tuple(TraceRequest(row[0] - start_s, row[1], row[2]) for row in rows),
        longest=LongestCall(f"line {line}", prompt, output),
    )


_SHAPES = {"state": ("deep_research", "requests"), "kind": ("tree_of_thoughts", "calls")}
"""A format's key for the type of a stage -> the application, and the key of a stage's calls."""


def _workflows(path: Path, text: str) -> Trace:
    listed = _field(path, "it", _parse(path, "it", text), "workflows", list)
    workflows = [_workflow(path, f"workflows[{index}]", each) for index, each in enumerate(listed)]
    if not workflows:
        raise BadTrace(str(path), "it has no workflows")
    calls = (
        LongestCall(f"workflows[{index}]", call.prompt_tokens, call.output_tokens)
        for index, workflow in enumerate(workflows)
        for stage in workflow.stages
        for call in stage.calls
    )
    return Trace(workflows=tuple(workflows), longest=max(calls, key=lambda call: call.tokens))


def _workflow(path: Path, at: str, workflow: object) -> Workflow:
    listed = _field(path, at, workflow, "stages", list)
    if len(listed) > MAX_STAGES:
        raise BadTrace(str(path), f"{at} has {len(listed):,} stages, more than {MAX_STAGES:,}")
    application, stages, prefix_groups, num_calls = "", [], count(1), 0
    for index, stage in enumerate(listed):
        stage_at = f"{at}.stages[{index}]"
        key = next((key for key in _SHAPES if isinstance(stage, dict) and key in stage), None)
        if key is None:
            raise BadTrace(str(path), f"{stage_at} must have a {' or a '.join(_SHAPES)}")
        application, calls_key = _SHAPES[key]
        calls: list[Call] = []
        for place, call in enumerate(_field(path, stage_at, stage, calls_key, list)):
            call_at = f"{stage_at}.{calls_key}[{place}]"
            step = str(stage[key])
            samples = _samples(path, call_at, call, next(prefix_groups))
            calls += [each._replace(step=step) for each in samples]
            if num_calls + len(calls) > MAX_CALLS:
                reason = f"{at} has more than {MAX_CALLS:,} calls, each sample counted"
                raise BadTrace(str(path), reason)
        num_calls += len(calls)
        if calls:  # a stage has no calls if all its answers were cached when it was recorded
            stages.append(Stage(tuple(calls)))
    if not stages:
        raise BadTrace(str(path), f"{at} has no calls")
    return Workflow(application, tuple(stages))


def _samples(path: Path, at: str, call: object, prefix_group: int) -> list[Call]:
    prompt, output = (
        tokens_of(path, f"{at}.{key}", _field(path, at, call, key, int))
        for key, tokens_of in (("in", _prompt), ("out", _answer))
    )
    num_samples = call.get("n", 1) if isinstance(call, dict) else 1
    if type(num_samples) is not int or not 1 <= num_samples <= 1000:
        raise BadTrace(str(path), f"{at}.n must be a whole number from 1 to 1,000")
    if num_samples == 1:
        return [Call(prompt, output)]
    return [Call(prompt, output, prompt, prefix_group)] * num_samples


def _json_object(line: str) -> dict[str, Any] | None:
    """The JSON object of a line; None if the line is not one."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parse(path: Path, at: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise BadTrace(str(path), f"{at}: not JSON: {cause}") from cause
    if not isinstance(document, dict):
        raise BadTrace(str(path), f"{at} must be a JSON object")
    return document


def _field(path: Path, at: str, document: object, key: str, kind: Any) -> Any:
    """The value of an object's key; raises BadTrace if it is missing or not of this kind."""
    if not isinstance(document, dict) or key not in document:
        raise BadTrace(str(path), f"{at} must be an object with {key!r}")
    value = document[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadTrace(str(path), f"{at}: {key!r} has the wrong type: {_shortened_repr(value)}")
    return value


def _prompt(path: Path, at: str, value: object) -> int:
    return _tokens(path, at, value, name="tokens", limit=MAX_PROMPT_TOKENS)


def _answer(path: Path, at: str, value: object) -> int:
    return _tokens(path, at, value, name="an answer's tokens", limit=MAX_ANSWER_TOKENS)


def _tokens(path: Path, at: str, value: object, *, name: str, limit: int) -> int:
    """A number of tokens; 0 becomes 1, since a call has at least one."""
    if isinstance(value, str) and len(value) < 20 and value.strip().isdecimal():
        value = int(value)
    if not isinstance(value, int) or not 0 <= value <= limit:
        rule = f"{name} must be a whole number from 0 to {limit:,}"
        raise BadTrace(str(path), f"{at}: {rule}, not {_shortened_repr(value)}")
    return max(value, 1)


def _shortened_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
