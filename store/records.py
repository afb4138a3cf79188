"""What repositories take and return: frozen facts, without any tie to the database.

Wall times are aware datetimes. Every other time is in seconds since the run's start, on the
run's own clock. A payload field holds the blake3 hash (hex) under which its bytes are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """Where a run, a step or a call stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CallKind(StrEnum):
    """What a call went to."""

    LLM = "llm"
    TOOL = "tool"


class StepKind(StrEnum):
    """What a step of the journal is."""

    STEP = "step"
    TOOL = "tool"
    LLM = "llm"
    INPUT = "input"  # a human's answer
    VALUE = "value"  # what the code asked for and another run would not get: the time, a number


class Effects(StrEnum):
    """What doing a step again would do."""

    PURE = "pure"  # nothing
    ENV = "env"  # the same to the run's own files and shell
    EXTERNAL = "external"  # something to the world outside, once more


class Encoding(StrEnum):
    """How a payload's bytes lie in the database."""

    IDENTITY = "identity"
    ZLIB = "zlib"
    PIECES = "pieces"  # the numbers of its pieces, compressed, each less the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The error that a run, a step or a call ended with; None if it did not end with one."""

    error_type: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult(Failure):
    """What is known of a call once it has ended; None until then."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    finish_reason: str | None = None
    output_payload: str | None = None


@dataclass(frozen=True, slots=True)
class RunRecord(Failure):
    """One run of a flow."""

    id: str
    flow: str
    started_at: datetime
    status: Status = Status.RUNNING
    deadline_s: float | None = None
    finished_at: datetime | None = None
    elapsed_s: float | None = None
    engine: str = ""
    model: str = ""
    policy: str = ""
    random_weights: bool = False  # the model's answers are noise: a demonstration, no result
    process_id: int = 0
    host: str = ""
    process: str | None = None  # which of all processes that have this id, as it says itself
    attributes: Mapping[str, object] = field(default_factory=dict)  # small JSON facts for display
    input_payload: str | None = None
    result_payload: str | None = None
    attempts: int = 1  # how often it was begun: once, and again each time it was resumed
    entry: str | None = None  # where its flow's code is, "module:name"
    claimed_at: datetime | None = None  # when its process began or resumed it
    leased_until: datetime | None = None  # until then nobody else may resume it
    slo_user: str = ""  # whose it is, to the scheduler


@dataclass(frozen=True, slots=True)
class RunOutcome(Failure):
    """How a run ended."""

    status: Status
    finished_at: datetime
    elapsed_s: float
    result_payload: str | None = None


@dataclass(frozen=True, slots=True)
class StepRecord(Failure):
    """One step of a run, known by its path: whatever is not done again once its outcome is known.

    A small result lies in the record itself, a large one is a payload.
    """

    run_id: str
    path: str
    name: str
    started_s: float
    kind: StepKind = StepKind.STEP
    place: int = 0  # among those that began from the same place, 0 the first
    effects: Effects = Effects.PURE
    attempts: int = 1  # how often it was begun
    status: Status = Status.RUNNING
    finished_s: float | None = None
    result: bytes | None = None
    result_payload: str | None = None
    reuse_key: bytes | None = None  # under which other runs may find its result
    arguments: bytes | None = None  # a digest of what it was called with
    ended_run: bool = False  # its error is what the run ended with: both are tried again


@dataclass(frozen=True, slots=True)
class StepOutcome(Failure):
    """How a step ended."""

    status: Status
    finished_s: float
    result: bytes | None = None
    result_payload: str | None = None


@dataclass(frozen=True, slots=True)
class CallRecord(CallResult):
    """One LLM or tool call of a run: a node of its pattern graph."""

    run_id: str
    node: int
    kind: CallKind
    identity: str  # model and step name, or the tool's name; never a prompt's text
    step_path: str
    stage: int
    started_s: float
    status: Status = Status.RUNNING
    finished_s: float | None = None
    sub_deadline_s: float | None = None
    deadline_source: str | None = None
    prompt_payload: str | None = None
    features: bytes | None = None  # what the length predictor knew of the call; opaque here
    length_bound: float | None = None  # output tokens not exceeded with probability 0.9, predicted
    bound_source: str | None = None  # what predicted the bound


@dataclass(frozen=True, slots=True)
class CallOutcome(CallResult):
    """How a call ended; what is None here stays as its start recorded it."""

    status: Status
    finished_s: float


@dataclass(frozen=True, slots=True)
class LengthSample:
    """How long a call's answer was, and what had been known and predicted when it began."""

    run_id: str
    identity: str
    run_started_at: datetime
    started_s: float  # as its record has it: since the run's start
    finished_s: float
    features: bytes
    output_tokens: int
    length_bound: float | None


@dataclass(frozen=True, slots=True)
class EdgeRecord:
    """A call that had to end before another could begin."""

    run_id: str
    parent: int
    child: int


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """A stored payload without its bytes; size in bytes, uncompressed."""

    hash: str
    size: int
    media_type: str


@dataclass(frozen=True, slots=True)
class PatternRecord:
    """An encoded pattern graph, opaque to the store.

    An application's patterns of positive weight are its library: each stands for as many runs as
    its weight says. The others, of weight 0, are kept as history only.
    """

    application: str
    document: bytes
    codec_version: int
    created_at: datetime
    weight: float = 1.0  # runs
    run_id: str | None = None
    id: int | None = None  # given by the store
    uses: float = 0.0  # how often later runs reused it, decayed to used_at
    used_at: datetime | None = None  # when adding: None, the store takes created_at


@dataclass(frozen=True, slots=True)
class FitRecord:
    """The last fit of an application's library: when, from what, and the kernel that it chose."""

    application: str
    fitted_at: datetime
    last_pattern_id: int  # the newest pattern that it took into account
    num_patterns: int  # how many it took into account
    kernel: Mapping[str, Any]  # a small JSON document, opaque to the store


@dataclass(frozen=True, slots=True)
class MatchRecord:
    """A past pattern that a live run was compared with, and how much it counted.

    The pattern itself may be forgotten by the time this is read.
    """

    pattern_id: int
    run_id: str | None  # the run that left the pattern
    weight: float  # its part in the decision


@dataclass(frozen=True, slots=True)
class StageRecord:
    """The deadline that a stage of a run was given when it began, and why that one."""

    run_id: str
    stage: int
    began_s: float
    sub_deadline_s: float | None
    source: str  # what decided the sub-deadline
    share: float | None = None  # of the run's deadline, from its start to this stage's end; 0 to 1
    spread: float | None = None  # the standard deviation of that share
    num_candidates: int = 0  # patterns that were compared
    num_matches: int = 0  # those that it rests on
    matches: Sequence[MatchRecord] = ()  # the heaviest of them
