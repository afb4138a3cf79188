"""Trace files of four published formats -> requests or workflows."""

from __future__ import annotations

import csv
import io
import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from serving.sim.errors import BadTrace, TraceMissing
from serving.sim.lengths import MOST_CALL_TOKENS
from serving.sim.programs import Call, Stage

MOST_TOKENS = 1_000_000
"""Of a prompt; more is taken to be a mistake in the file."""

MOST_ANSWER_TOKENS = MOST_CALL_TOKENS
"""Of an answer: the limit that every call of a trace is submitted with, whatever its length, as
policies see limits."""

HASH_BLOCK_TOKENS = 512
"""Prompt tokens that one of Mooncake's hash ids stands for."""


class TraceRequest(NamedTuple):
    """One request of a trace of single calls.

    Attributes:
        arrival_s: since the trace's first request.
        prompt_tokens, output_tokens: at least 1; the 0 of a failed request becomes 1.
        hash_ids: of the prompt's blocks of HASH_BLOCK_TOKENS; equal first ids are equal text, in
            whichever requests. Empty where the format has none.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


class Workflow(NamedTuple):
    """One run of a trace of compound programs; such traces hold no times."""

    application: str
    stages: tuple[Stage, ...]


class Trace(NamedTuple):
    """What a file holds: requests in order of arrival, or workflows in the file's order.

    Attributes:
        digest: of the very bytes that were read.
    """

    requests: tuple[TraceRequest, ...] = ()
    workflows: tuple[Workflow, ...] = ()
    digest: str = ""


def read_trace(path: Path, *, digest: str | None = None) -> Trace:
    """Read a trace; its format is told from what the file begins with and holds.

    - Azure LLM inference traces: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
    - Mooncake: JSON lines with timestamp (ms), input_length, output_length, hash_ids (optional).
    - Deep research (JITServe): a JSON object with workflows of stages of {state, requests}.
    - Tree of Thoughts: the same with {kind, calls}, where a call of n samples is n calls with one
      prompt and the call's output tokens each.

    A prompt has at most MOST_TOKENS, an answer at most MOST_ANSWER_TOKENS.

    Args:
        digest: what the file must still hold; None: whatever it holds.
    Raises:
        TraceMissing: there is no such file.
        BadTrace: it cannot be read or read again, has changed, is of another format, or breaks
            its format; with its place.
    """
    content = _content(path)
    found = blake3(content).hexdigest()
    if digest not in (None, found):
        told = "it changed while in use: start again, and leave it as it is until the end"
        raise BadTrace(str(path), told)
    return _parsed(path, content)._replace(digest=found)


def _content(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # each process reads it for itself
            told = "it is no regular file, but a directory, a pipe or a device: save it to a file"
            raise BadTrace(str(path), f"{told} first")
        return path.read_bytes()
    except FileNotFoundError as cause:
        raise TraceMissing(str(path), f"cannot read it: {cause.strerror}") from cause
    except OSError as cause:
        raise BadTrace(str(path), f"cannot read it: {cause.strerror}") from cause


def _parsed(path: Path, content: bytes) -> Trace:
    try:
        text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig").read()
    except UnicodeDecodeError as cause:
        raise BadTrace(str(path), f"it is no UTF-8 text: {cause}") from cause
    head = text.lstrip()[:1]
    first_line = text.lstrip().split("\n", 1)[0]
    if head == "{" and '"workflows"' in text:
        return Trace(workflows=_workflows(path, text))
    if head == "{" and ('"timestamp"' in first_line or '"input_length"' in first_line):
        return Trace(requests=_mooncake(path, text))
    if set(_AZURE) <= {column.strip() for column in first_line.split(",")}:
        return Trace(requests=_azure(path, text))
    if head == "{" and not _is_json(first_line):
        _parse(path, "it", text)  # which says where it is damaged
    told = "it is none of the known formats: Azure CSV, Mooncake JSON lines, workflows in JSON"
    raise BadTrace(str(path), told)


_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _azure(path: Path, text: str) -> tuple[TraceRequest, ...]:
    reader = csv.DictReader(io.StringIO(text.lstrip()), strict=True, skipinitialspace=True)
    rows = []
    try:
        for row in reader:
            at = f"line {reader.line_num}"
            if None in row or None in row.values():
                raise BadTrace(str(path), f"{at}: it must have as many columns as the first line")
            stamp, prompt, output = (row[column] for column in _AZURE)
            try:
                time = datetime.fromisoformat(stamp)
            except ValueError:
                raise BadTrace(str(path), f"{at}: {_briefly(stamp)} is no time") from None
            if time.tzinfo is None:
                time = time.replace(tzinfo=UTC)
            rows.append((time, _prompt(path, at, prompt), _answer(path, at, output)))
    except (csv.Error, KeyError) as cause:
        raise BadTrace(str(path), f"after line {reader.line_num}: {cause}") from cause
    return _by_arrival(path, [(row[0].timestamp(), *row[1:], ()) for row in rows])


def _mooncake(path: Path, text: str) -> tuple[TraceRequest, ...]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        at = f"line {number}"
        row = _parse(path, at, line)
        stamp = _member(path, at, row, "timestamp", (int, float))
        if not 0 <= stamp <= 1e15:  # also refuses what is not a number, and huge integers
            raise BadTrace(str(path), f"{at}: timestamp must be milliseconds, not below 0")
        hash_ids = _member(path, at, row, "hash_ids", list) if "hash_ids" in row else []
        if not all(type(block) is int for block in hash_ids):
            raise BadTrace(str(path), f"{at}: hash_ids must be whole numbers")
        prompt, output = (
            tokens_of(path, f"{at}: {key}", _member(path, at, row, key, int))
            for key, tokens_of in (("input_length", _prompt), ("output_length", _answer))
        )
        rows.append((stamp / 1000.0, prompt, output, tuple(hash_ids)))
    return _by_arrival(path, rows)


def _by_arrival(
    path: Path, rows: list[tuple[float, int, int, tuple[int, ...]]]
) -> tuple[TraceRequest, ...]:
    if not rows:
        raise BadTrace(str(path), "it holds no requests")
    rows.sort(key=lambda row: row[0])
    start_s = rows[0][0]
    return tuple(TraceRequest(row[0] - start_s, *row[1:]) for row in rows)


_SHAPES = {"state": ("deep_research", "requests"), "kind": ("tree_of_thoughts", "calls")}
"""By a format's name for what a stage is: the application, and its name for a stage's calls."""


def _workflows(path: Path, text: str) -> tuple[Workflow, ...]:
    found = []
    listed = _member(path, "it", _parse(path, "it", text), "workflows", list)
    for number, workflow in enumerate(listed):
        at = f"workflows[{number}]"
        application, stages = "", []
        for place, stage in enumerate(_member(path, at, workflow, "stages", list)):
            here = f"{at}.stages[{place}]"
            key = next((key for key in _SHAPES if isinstance(stage, dict) and key in stage), None)
            if key is None:
                raise BadTrace(str(path), f"{here} must have a {' or a '.join(_SHAPES)}")
            application, calls_key = _SHAPES[key]
            calls = tuple(
                sample
                for which, call in enumerate(_member(path, here, stage, calls_key, list))
                for sample in _samples(path, f"{here}.{calls_key}[{which}]", call)
            )
            if calls:  # a stage may be empty: all its answers were known already
                stages.append(Stage(calls))
        if not stages:
            raise BadTrace(str(path), f"{at} has no calls")
        found.append(Workflow(application, tuple(stages)))
    if not found:
        raise BadTrace(str(path), "it holds no workflows")
    return tuple(found)


def _samples(path: Path, at: str, call: object) -> list[Call]:
    prompt, output = (
        tokens_of(path, f"{at}.{key}", _member(path, at, call, key, int))
        for key, tokens_of in (("in", _prompt), ("out", _answer))
    )
    num_samples = call.get("n", 1) if isinstance(call, dict) else 1
    if type(num_samples) is not int or not 1 <= num_samples <= 1000:
        raise BadTrace(str(path), f"{at}.n must be a whole number from 1 to 1,000")
    shared = prompt if num_samples > 1 else 0
    return [Call(prompt, output, shared_prefix_tokens=shared)] * num_samples


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


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
