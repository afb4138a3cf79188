"""A replica's answer to `GET /orchestrate/snapshot`, checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from serving.router.snapshot import HORIZONS_S, ReplicaSnapshot, Speed

_COUNTS = (
    "slots",
    "num_running",
    "num_waiting",
    "running_tokens",
    "waiting_tokens",
    "kv_blocks",
    "free_kv_blocks",
    "final_kv_blocks",
    "block_tokens",
)


class SnapshotReport(NamedTuple):
    """What a replica says of itself.

    Attributes:
        boot_id: new at each start of the replica.
        models: the models that it serves.
        age_s: age of the engine's own report when the replica answered.
        draining: it takes no new requests; False if it does not say.
        snapshot: without the id of the replica, which its reader knows.
    """

    boot_id: str
    models: tuple[str, ...]
    age_s: float
    draining: bool
    snapshot: ReplicaSnapshot


class InvalidReport(ValueError):
    """A replica's answer is not a report; the text says what is wrong with it."""


def parse_report(content: bytes) -> SnapshotReport:
    """The report in an answer.

    Raises:
        InvalidReport: a member is missing, or has a wrong type or value.
    """
    try:
        document = json.loads(content)
    except ValueError as error:
        raise InvalidReport(f"it is not JSON: {error}") from error
    report = _mapping(document, "the report")
    models = _member(report, "models")
    if not isinstance(models, list) or not all(isinstance(each, str) for each in models):
        raise InvalidReport("models must be a list of names")
    boot_id = _member(report, "boot_id")
    if not isinstance(boot_id, str):
        raise InvalidReport("boot_id must be a text")
    return SnapshotReport(
        boot_id=boot_id,
        models=tuple(models),
        age_s=_number(report, "age_s"),
        draining=report.get("draining") is True,
        snapshot=_snapshot(_mapping(_member(report, "snapshot"), "snapshot")),
    )


def _snapshot(fields: Mapping[str, Any]) -> ReplicaSnapshot:
    due_work_s = _member(fields, "due_work_s")
    if not isinstance(due_work_s, list) or len(due_work_s) != len(HORIZONS_S):
        raise InvalidReport(f"due_work_s must be a list of {len(HORIZONS_S)} numbers")
    counts: dict[str, Any] = {name: _count(fields, name) for name in _COUNTS}
    return ReplicaSnapshot(
        replica="",
        speed=_speed(_member(fields, "speed")),
        work_s=_number(fields, "work_s"),
        due_work_s=tuple(_checked(each, "due_work_s") for each in due_work_s),
        late_work_s=_number(fields, "late_work_s"),
        **counts,
    )


def _speed(value: Any) -> Speed:
    """A speed from an object, or from a list in the order of its fields; every part is above 0."""
    if isinstance(value, list) and len(value) == len(Speed._fields):
        value = dict(zip(Speed._fields, value, strict=True))
    fields = _mapping(value, "speed")
    speed = Speed(*(_number(fields, name) for name in Speed._fields))
    if not min(speed) > 0:
        raise InvalidReport("every part of speed must be above 0")
    return speed


def _member(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise InvalidReport(f"{name} is missing")
    return fields[name]


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidReport(f"{name} must be an object")
    return value


def _number(fields: Mapping[str, Any], name: str) -> float:
    return _checked(_member(fields, name), name)


def _checked(value: Any, name: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise InvalidReport(f"{name} must be a finite number of at least 0")
    return float(value)


def _count(fields: Mapping[str, Any], name: str) -> int:
    number = _number(fields, name)
    if not number.is_integer() or (name == "block_tokens" and not number):
        raise InvalidReport(f"{name} must be a whole number")
    return int(number)
