"""The file of API keys: what it may contain, and errors that say where it is wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from serving.engine.server.api_keys import ApiKey, digest_of, parse_api_keys, read_api_keys
from serving.errors import InvalidApiKeys

DIGEST = hashlib.sha256(b"secret").hexdigest()
ENTRY = '[[keys]]\nuser = "alice"\nkey = "secret"\n'


def test_a_key_and_its_digest_are_the_same_entry() -> None:
    plain = parse_api_keys(ENTRY, "f")
    assert plain == (ApiKey(digest_of(b"secret"), "alice"),)
    assert plain == parse_api_keys(f'[[keys]]\nuser = "alice"\nsha256 = "{DIGEST.upper()}"', "f")


def test_an_entry_may_have_limits() -> None:
    limits = "requests_per_minute = 60\nconcurrency = 4\nweight = 2.5"
    [key] = parse_api_keys(ENTRY + limits, "f")
    assert (key.requests_per_minute, key.concurrency, key.weight) == (60, 4, 2.5)


def test_a_user_may_have_several_keys() -> None:
    text = ENTRY + ENTRY.replace("secret", "other")
    assert [key.user for key in parse_api_keys(text, "f")] == ["alice", "alice"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"\[\[keys\]\]"),
        ("keys = []", r"\[\[keys\]\]"),
        ("keys = 1", r"\[\[keys\]\]"),
        (ENTRY + "[other]", r"\[\[keys\]\]"),
        ("[[keys]]\nuser = \n", "line 2"),
        ("keys = [1]", "key 1: must be a table"),
        (ENTRY + '[[keys]]\nuser = "bob"', "key 2: must have either key or sha256"),
        (ENTRY + f'sha256 = "{DIGEST}"', "key 1: must have either key or sha256"),
        ('[[keys]]\nuser = "a"\nsha256 = "12"', "64 hexadecimal digits"),
        ('[[keys]]\nuser = "a"\nsha256 = 12', "64 hexadecimal digits"),
        ('[[keys]]\nuser = "a"\nkey = 12', "key must not be empty"),
        ('[[keys]]\nuser = "a"\nkey = " "', "key must not be empty"),
        ('[[keys]]\nuser = "a"\nkey = "schlüssel"', "key must be printable ASCII"),
        ('[[keys]]\nkey = "a"', "user must be a text"),
        ('[[keys]]\nuser = ""\nkey = "a"', "user must be a text"),
        (f'[[keys]]\nuser = "{"u" * 257}"\nkey = "a"', "user: .*256"),
        (ENTRY + "concurrency = 0", "concurrency must be a whole number"),
        (ENTRY + "weight = 0", "weight must be a finite number above 0"),
        (ENTRY + 'weight = "heavy"', "weight must be a number"),
        (ENTRY + "concurrency = true", "concurrency must be a whole number"),
        (ENTRY + "requests_per_minute = 1.5", "requests_per_minute must be a whole number"),
        (ENTRY + "rate = 1", "unknown fields: rate"),
        (ENTRY + ENTRY, "key 2: is the key of an earlier entry"),
    ],
)
def test_an_invalid_file_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(InvalidApiKeys, match=reason) as refused:
        parse_api_keys(text, "keys.toml")
    assert str(refused.value).startswith("keys.toml: ")
    assert "secret" not in str(refused.value)


def test_a_private_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(ENTRY)
    file.chmod(0o600)
    assert len(read_api_keys(file)) == 1


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(ENTRY)
    file.chmod(mode)
    with pytest.raises(InvalidApiKeys, match="chmod 600"):
        read_api_keys(file)


def test_a_missing_file_and_one_that_is_not_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidApiKeys, match="cannot be read"):
        read_api_keys(tmp_path / "none.toml")
    file = tmp_path / "keys.toml"
    file.write_bytes(b"\xff")
    file.chmod(0o600)
    with pytest.raises(InvalidApiKeys, match="cannot be read"):
        read_api_keys(file)
