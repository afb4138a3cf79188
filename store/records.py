"""The records that repositories take and return: frozen dataclasses, independent of the database.

Wall-clock times are aware datetimes. Other times are in seconds since the run's start, on the
run's own clock. A payload field holds the blake3 hash (hex) under which its bytes are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """The status of a run, a step or a call."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    QUEUED = "queued"  # of a run: it waits in a queue for a worker
    DEAD = "dead"  # of a run: its attempts are used up, and no worker takes it again


class CallKind(StrEnum):
    """Whether a call went to a language model or to a tool."""

    LLM = "llm"
    TOOL = "tool"


class StepKind(StrEnum):
    """The kind of a step in the journal."""

    STEP = "step"
    TOOL = "tool"
    LLM = "llm"
    INPUT = "input"  # a human's answer
    VALUE = "value"  # a value that would differ when the code runs again: a time, a random number


class Effects(StrEnum):
    """The side effects of repeating a step."""

    PURE = "pure"  # none
    ENV = "env"  # the same changes to the run's own files and shell
    EXTERNAL = "external"  # the same effect on the outside world a second time


class Encoding(StrEnum):
    """How a payload's bytes are stored."""

    IDENTITY = "identity"
    ZLIB = "zlib"
    CHUNKED = "pieces"  # a compressed list of its chunks' row ids, see payloads.encode_chunk_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The error with which a run, a step or a call ended; None without an error."""

    error_type: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult(Failure):
    """The results of a call; a field is None until the call has ended, or if it is not known."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    finish_reason: str | None = None
    output_payload: str | None = None


GONE = "gone:"
"""Prefix of the last mark in the path of an external effect that a changed flow left behind."""

NEVER_DUE = datetime(9999, 1, 1, tzinfo=UTC)
"""`due_at` of a queued run without a deadline: databases order NULL differently."""

FORKED_FROM = "forked_from"
"""Name of the attribute of a run that says where it was forked from, as RunRecord.forked_from."""


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
    random_weights: bool = False  # its answers are noise
    process_id: int = 0
    host: str = ""
    process: str | None = None  # identifies its process among all machines and times
    attributes: Mapping[str, object] = field(default_factory=dict)  # small JSON values, for display
    input_payload: str | None = None
    result_payload: str | None = None
    attempts: int = 1  # 1, and 1 more for each time it was resumed
    entry: str | None = None  # where its flow's code is, "module:name"
    claimed_at: datetime | None = None  # when its process started or resumed it
    leased_until: datetime | None = None  # no other process may resume it before
    slo_user: str = ""  # its user, for fairness between users
    cancel_requested_at: datetime | None = None  # its process is to cancel it
    clock_stopped_s: float = 0.0  # how long its clock was stopped, for questions to a person
    queue: str | None = None  # the queue that it was submitted to; None: it was begun directly
    rank: int = 0  # its priority, negated: an index in ascending order has the next run first
    due_at: datetime | None = None  # its deadline as a moment; NEVER_DUE: it is queued without one
    not_before: datetime | None = None  # no worker claims it before
    dedup_key: str | None = None  # while it waits or runs, its queue takes no other with this key
    failed_attempts: int = 0  # how often a worker was lost with it, or it failed and was to retry
    max_attempts: int = 1  # failed attempts after which it is dead
    retry_s: float | None = None  # pause before it is tried again after an error; None: it is not
    code_version: str | None = None  # of its flow's code when it was submitted

    @property
    def priority(self) -> int:
        """The higher, the earlier it is claimed."""
        return -self.rank

    @property
    def tags(self) -> Mapping[str, str]:
        """The texts by name that its flow's `options(tags=)` gave it."""
        tags = self.attributes.get("tags", {})
        return tags if isinstance(tags, Mapping) else {}

    @property
    def forked_from(self) -> Mapping[str, Any] | None:
        """Of a fork: the id of the other `run`, the path of the step `at` which it was forked.

        And the `outcome_number` of that step.
        """
        origin = self.attributes.get(FORKED_FROM)
        return origin if isinstance(origin, Mapping) else None


@dataclass(frozen=True, slots=True)
class RunOutcome(Failure):
    """How a run ended."""

    status: Status
    finished_at: datetime
    elapsed_s: float
    result_payload: str | None = None
    clock_stopped_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepRecord(Failure):
    """One step of a run, identified by its path. A step is not repeated if its outcome is recorded.

    A small result is stored in the record itself, a large one as a payload.
    """

    run_id: str
    path: str
    name: str
    started_s: float
    kind: StepKind = StepKind.STEP
    place: int = 0  # its index among the steps that began in the same scope
    effects: Effects = Effects.PURE
    attempts: int = 1  # how often it was started
    status: Status = Status.RUNNING
    finished_s: float | None = None
    result: bytes | None = None
    result_payload: str | None = None
    reuse_key: bytes | None = None  # the key under which other runs find and reuse its result
    arguments: bytes | None = None  # a digest of its arguments
    ended_run: bool = False  # its error ended the run: a resumed run tries it again
    outcome_number: int | None = None  # the place of its outcome in the order in which they came
    answer_schema: Mapping[str, Any] | None = None  # of a question: a JSON schema of its answers
    stops_clock: bool = False  # of a question: the run's clock stops until the flow has an answer
    workspace: str | None = None  # the workspace that it changes, if any
    state_before: str | None = None  # the state in which it found the workspace
    state_after: str | None = None  # the state in which it left it


@dataclass(frozen=True, slots=True)
class StepOutcome(Failure):
    """How a step ended."""

    status: Status
    finished_s: float
    result: bytes | None = None
    result_payload: str | None = None
    outcome_number: int | None = None
    state_after: str | None = None


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
    features: bytes | None = None  # the length predictor's input; opaque here
    length_bound: float | None = None  # predicted 0.9 quantile of the output tokens
    bound_source: str | None = None  # what predicted the bound
    engine: str | None = None  # the kind of engine that answers it; None: a tool, or not recorded
    engine_name: str | None = None  # the engine's name in its runtime; "" for the default one
    model: str | None = None  # the model that answers it
    random_weights: bool = False  # its answer is noise


@dataclass(frozen=True, slots=True)
class CallOutcome(CallResult):
    """How a call ended; a field that is None here keeps the value recorded at the start."""

    status: Status
    finished_s: float


@dataclass(frozen=True, slots=True)
class LengthSample:
    """The length of a call's answer, with the features and the prediction from its start."""

    run_id: str
    identity: str
    run_started_at: datetime
    started_s: float  # since the run's start
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
    """A stored payload without its bytes; `size` is in bytes, uncompressed."""

    hash: str
    size: int
    media_type: str


@dataclass(frozen=True, slots=True)
class PatternRecord:
    """An encoded pattern graph, opaque to the store.

    An application's patterns with a positive weight are its library; the weight is the number of
    runs that a pattern represents. Patterns with weight 0 are kept as history only.
    """

    application: str
    document: bytes
    codec_version: int
    created_at: datetime
    weight: float = 1.0  # runs
    run_id: str | None = None
    id: int | None = None  # assigned by the store
    uses: float = 0.0  # how often later runs used it, decayed to used_at
    used_at: datetime | None = None  # None when a pattern is added means created_at
    is_cut_off: bool = False  # its run was cut off by its deadline, and would have gone on


@dataclass(frozen=True, slots=True)
class FitRecord:
    """The last fit of an application's library: its time, its input and the kernel it selected."""

    application: str
    fitted_at: datetime
    last_pattern_id: int  # the newest pattern in its input
    num_patterns: int  # the size of its input
    kernel: Mapping[str, Any]  # a small JSON document, opaque to the store


@dataclass(frozen=True, slots=True)
class MatchRecord:
    """A past pattern that a live run was matched with, and its weight in the estimate.

    The pattern itself may have been deleted since.
    """

    pattern_id: int
    run_id: str | None  # the run that the pattern was recorded from
    weight: float  # its share of the estimate


@dataclass(frozen=True, slots=True)
class StageRecord:
    """The sub-deadline that a stage of a run was given when it began, and its basis."""

    run_id: str
    stage: int
    began_s: float
    sub_deadline_s: float | None
    source: str  # what decided the sub-deadline
    share: float | None = None  # of the run's deadline, from its start to this stage's end; 0 to 1
    spread: float | None = None  # the standard deviation of that share
    num_candidates: int = 0  # patterns that were compared
    num_matches: int = 0  # patterns that the estimate is based on
    matches: Sequence[MatchRecord] = ()  # those with the largest weights
