"""The file of API keys: who may use a server, and how much."""

from __future__ import annotations

import hashlib
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.engine.setup.config import check_api_key
from serving.errors import InvalidApiKeys, InvalidEngineConfig, InvalidSlo
from serving.slo import from_tags

_FIELDS = frozenset({"key", "sha256", "user", "requests_per_minute", "concurrency", "weight"})


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that clients may send.

    Attributes:
        digest: SHA-256 of the key; the key itself is not kept.
        user: the `slo_user` of its requests; None: the client names the user itself.
        requests_per_minute: most requests that begin within 60 seconds; None: any number.
        concurrency: most requests at once; None: any number.
        weight: the `slo_weight` of its requests; None: the client names it itself.
    """

    digest: bytes
    user: str | None = None
    requests_per_minute: int | None = None
    concurrency: int | None = None
    weight: float | None = None


def digest_of(key: bytes) -> bytes:
    """The digest under which a key is known."""
    return hashlib.sha256(key).digest()


def read_api_keys(file: Path) -> tuple[ApiKey, ...]:
    """The keys in a file.

    Raises:
        InvalidApiKeys: it cannot be read, others may read or write it, or an entry is invalid; the
            error names the line or the entry.
    """
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidApiKeys(str(file), "", f"cannot be read: {error}") from error
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        reason = "every user of this machine can read or change it: chmod 600"
        raise InvalidApiKeys(str(file), "", reason)
    return parse_api_keys(text, str(file))


def parse_api_keys(text: str, file: str) -> tuple[ApiKey, ...]:
    """The keys in the text of a file, in TOML: a table [[keys]] for each.

    Args:
        file: named in errors.
    Raises:
        InvalidApiKeys: as for `read_api_keys`.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # its text says the line
        raise InvalidApiKeys(file, "", str(error)) from error
    entries = document.get("keys")
    if document.keys() - {"keys"} or not isinstance(entries, list) or not entries:
        raise InvalidApiKeys(file, "", "must have a table [[keys]] for each key, and nothing else")
    keys: dict[bytes, ApiKey] = {}
    for number, entry in enumerate(entries, 1):
        key = _key(entry, file, f"key {number}")
        if key.digest in keys:
            raise InvalidApiKeys(file, f"key {number}", "is the key of an earlier entry too")
        keys[key.digest] = key
    return tuple(keys.values())


def _key(entry: object, file: str, place: str) -> ApiKey:
    def fault(reason: str) -> InvalidApiKeys:
        return InvalidApiKeys(file, place, reason)

    if not isinstance(entry, Mapping):
        raise fault("must be a table")
    unknown = sorted(entry.keys() - _FIELDS)
    if unknown:
        raise fault(f"has unknown fields: {', '.join(unknown)}")
    user = entry.get("user")
    if not isinstance(user, str) or not user:
        raise fault("user must be a text")
    try:
        from_tags({"slo_user": user})
    except InvalidSlo as error:
        raise fault(f"user: {error.args[2]}") from error
    limits: dict[str, Any] = {}
    for name in ("requests_per_minute", "concurrency"):
        limit = entry.get(name)
        if limit is not None and (type(limit) is not int or limit < 1):
            raise fault(f"{name} must be a whole number of at least 1")
        limits[name] = limit
    weight = entry.get("weight")
    if weight is not None:
        try:
            weight = from_tags({"slo_weight": weight}).weight
        except InvalidSlo as error:
            raise fault(f"weight {error.args[2]}") from error
    return ApiKey(_digest(entry, fault), user, weight=weight, **limits)


def _digest(entry: Mapping[str, Any], fault: Any) -> bytes:
    key, digest = entry.get("key"), entry.get("sha256")
    if (key is None) == (digest is None):
        raise fault("must have either key or sha256")
    if digest is not None:
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-fA-F]{64}", digest):
            raise fault("sha256 must be 64 hexadecimal digits")
        return bytes.fromhex(digest)
    try:
        check_api_key(key if isinstance(key, str) else "")
    except InvalidEngineConfig as error:
        raise fault(f"key {error.args[2]}") from error
    return digest_of(str(key).encode())
