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

from serving.sim.programs.lengths import MOST_CALL_TOKENS
from serving.sim.programs.programs import Call, Stage
from serving.sim.workloads.trace_text import content_of, text_of
from serving.workload_errors import BadTrace

MOST_TOKENS = 1_000_000
"""Of a prompt; more is taken to be a mistake in the file."""

MOST_ANSWER_TOKENS = MOST_CALL_TOKENS
"""Of an answer: the limit that every call of a trace is submitted with, whatever its length, as
policies see limits."""

MOST_STAGES = 256
"""Of a workflow: each adds to its deadline, until which a run is watched."""

MOST_CALLS = 2048
"""Of a workflow, every sample counted; a capacity is measured on hundreds of workflows."""


class TraceRequest(NamedTuple):
    """One request of a trace of single calls.

    Attributes:
        arrival_s: since the trace's first request.
        prompt_tokens, output_tokens: at least 1; the 0 of a failed request becomes 1.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


class Workflow(NamedTuple):
    """One run of a trace of compound programs; such traces hold no times."""

    application: str
    stages: tuple[Stage, ...]


class LongestCall(NamedTuple):
    """The call of a file that needs most room, and where it is: its line, or its workflow."""

    place: str
    prompt_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """Of the prompt and the answer."""
        return self.prompt_tokens + self.output_tokens


class Trace(NamedTuple):
    """What a file holds: requests in order of arrival, or workflows in the file's order.

    Attributes:
        longest: the first of the longest calls.
        digest: of the very bytes that were read.
    """

    requests: tuple[TraceRequest, ...] = ()
    workflows: tuple[Workflow, ...] = ()
    longest: LongestCall = LongestCall("", 0, 0)
    digest: str = ""


def read_trace(path: Path, *, digest: str | None = None) -> Trace:
    """Read a trace; its format is told from what the file begins with and holds.

    - Azure LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
    - Mooncake: JSON lines with timestamp (ms), input_length, output_length; hash_ids are not read.
    - Deep research (JITServe): a JSON object with workflows of stages of {state, requests}.
    - Tree of Thoughts: the same with {kind, calls}, where a call of n samples is n calls with one
      prompt and the call's output tokens each. The prompt is the samples' own, of which no other
      call has any part; each sample counts it as its input.

    A prompt has at most MOST_TOKENS, an answer at most MOST_ANSWER_TOKENS; a workflow at most
    MOST_STAGES and MOST_CALLS.

    Args:
        digest: what the file must still hold; None: whatever it holds.
    Raises:
        TraceMissing: there is no such file.
        BadTrace: it cannot be read or read again, has changed, is of another format, or breaks
            its format; with its place.
    """
    content = content_of(path)
    found = blake3(content).hexdigest()
    if digest not in (None, found):
        told = "it changed while in use: start again, and leave it as it is until the end"
        raise BadTrace(str(path), told)
    return _parsed(path, text_of(path, content))._replace(digest=found)


def _parsed(path: Path, text: str) -> Trace:
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
        if _whole(first_line) is None:
            _parse(path, "it", text)  # which says where it is damaged
    told = "it is none of the known formats: Azure CSV, Mooncake JSON lines, workflows in JSON"
    raise BadTrace(str(path), told)


def _names(text: str, first_line: str) -> set[str]:
    """What a JSON text's first object has, as far as it tells the format."""
    begun = _whole(first_line)
    if begun is not None:
        return set(begun)
    # An object of many lines, or a damaged one: what is written like a name is taken for one.
    return set(re.findall(r'"(workflows)"\s*:', text) or re.findall(r'"(\w+)"\s*:', first_line))


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _columns(line: str) -> list[str]:
    """The names in a CSV's first line; none where it is no CSV."""
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
                raise BadTrace(str(path), f"{at}: it must have as many columns as the first line")
            stamp, prompt, output = (row[columns.index(name)] for name in _AZURE)
            try:
                time = datetime.fromisoformat(stamp)
            except ValueError:
                raise BadTrace(str(path), f"{at}: {_briefly(stamp)} is no time") from None
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
        stamp = _member(path, at, row, "timestamp", (int, float))
        if not 0 <= stamp <= 1e15:  # also refuses what is not a number, and huge integers
            raise BadTrace(str(path), f"{at}: timestamp must be milliseconds, not below 0")
        prompt, output = (
            tokens_of(path, f"{at}: {key}", _member(path, at, row, key, int))
            for key, tokens_of in (("input_length", _prompt), ("output_length", _answer))
        )
        rows.append((stamp / 1000.0, prompt, output, number))
    return _by_arrival(path, rows)


def _by_arrival(path: Path, rows: list[tuple[float, int, int, int]]) -> Trace:
    """Requests of (seconds, prompt, answer, line)."""
    if not rows:
        raise BadTrace(str(path), "it holds no requests")
    _, prompt, output, line = max(rows, key=lambda row: row[1] + row[2])
    rows.sort(key=lambda row: row[0])
    start_s = rows[0][0]
    return Trace(
        requests=tuple(TraceRequest(row[0] - start_s, row[1], row[2]) for row in rows),
        longest=LongestCall(f"line {line}", prompt, output),
    )


_SHAPES = {"state": ("deep_research", "requests"), "kind": ("tree_of_thoughts", "calls")}
"""By a format's name for what a stage is: the application, and its name for a stage's calls."""


def _workflows(path: Path, text: str) -> Trace:
    listed = _member(path, "it", _parse(path, "it", text), "workflows", list)
    found = [_workflow(path, f"workflows[{number}]", each) for number, each in enumerate(listed)]
    if not found:
        raise BadTrace(str(path), "it holds no workflows")
    calls = (
        LongestCall(f"workflows[{number}]", call.prompt_tokens, call.output_tokens)
        for number, workflow in enumerate(found)
        for stage in workflow.stages
        for call in stage.calls
    )
    return Trace(workflows=tuple(found), longest=max(calls, key=lambda call: call.tokens))


def _workflow(path: Path, at: str, workflow: object) -> Workflow:
    listed = _member(path, at, workflow, "stages", list)
    if len(listed) > MOST_STAGES:
        raise BadTrace(str(path), f"{at} has {len(listed):,} stages, of at most {MOST_STAGES:,}")
    application, stages, prompts, num_calls = "", [], count(1), 0
    for place, stage in enumerate(listed):
        here = f"{at}.stages[{place}]"
        key = next((key for key in _SHAPES if isinstance(stage, dict) and key in stage), None)
        if key is None:
            raise BadTrace(str(path), f"{here} must have a {' or a '.join(_SHAPES)}")
        application, calls_key = _SHAPES[key]
        calls: list[Call] = []
        for which, call in enumerate(_member(path, here, stage, calls_key, list)):
            calls += _samples(path, f"{here}.{calls_key}[{which}]", call, next(prompts))
            if num_calls + len(calls) > MOST_CALLS:
                told = f"{at} has more than {MOST_CALLS:,} calls, every sample counted"
                raise BadTrace(str(path), told)
        num_calls += len(calls)
        if calls:  # a stage may be empty: all its answers were known already
            stages.append(Stage(tuple(calls)))
    if not stages:
        raise BadTrace(str(path), f"{at} has no calls")
    return Workflow(application, tuple(stages))


def _samples(path: Path, at: str, call: object, prefix_group: int) -> list[Call]:
    prompt, output = (
        tokens_of(path, f"{at}.{key}", _member(path, at, call, key, int))
        for key, tokens_of in (("in", _prompt), ("out", _answer))
    )
    num_samples = call.get("n", 1) if isinstance(call, dict) else 1
    if type(num_samples) is not int or not 1 <= num_samples <= 1000:
        raise BadTrace(str(path), f"{at}.n must be a whole number from 1 to 1,000")
    if num_samples == 1:
        return [Call(prompt, output)]
    return [Call(prompt, output, prompt, prefix_group)] * num_samples


def _whole(line: str) -> dict[str, Any] | None:
    """The object that a line is; None where it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _parse(path: Path, at: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise BadTrace(str(path), f"{at}: not JSON: {cause}") from cause
    if not isinstance(document, dict):
        raise BadTrace(str(path), f"{at} must be a JSON object")
    return document


def _member(path: Path, at: str, document: object, key: str, kind: Any) -> Any:
    """What an object in a document holds under a key, of a kind."""
    if not isinstance(document, dict) or key not in document:
        raise BadTrace(str(path), f"{at} must be an object with {key!r}")
    value = document[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadTrace(str(path), f"{at}: {key!r} is of the wrong type: {_briefly(value)}")
    return value


def _prompt(path: Path, at: str, value: object) -> int:
    return _tokens(path, at, value, what="tokens", most=MOST_TOKENS)


def _answer(path: Path, at: str, value: object) -> int:
    return _tokens(path, at, value, what="an answer's tokens", most=MOST_ANSWER_TOKENS)


def _tokens(path: Path, at: str, value: object, *, what: str, most: int) -> int:
    """A number of tokens, at least 1: no call is without any."""
    if isinstance(value, str) and len(value) < 20 and value.strip().isdecimal():
        value = int(value)
    if not isinstance(value, int) or not 0 <= value <= most:
        rule = f"{what} are a whole number from 0 to {most:,}"
        raise BadTrace(str(path), f"{at}: {rule}, and not {_briefly(value)}")
    return max(value, 1)


def _briefly(value: object) -> str:
    told = repr(value)
    return told if len(told) <= 40 else f"{told[:40]}..."
