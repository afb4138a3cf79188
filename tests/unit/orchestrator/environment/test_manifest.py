"""Manifests: equal trees have equal digests, and JSON keeps every name."""

from __future__ import annotations

from orchestrator.environment.files.manifest import (
    Entry,
    contents_of,
    files_digest,
    from_json,
    to_json,
)

FILE = Entry("file", 0o644, "d1", 3, 1)


def test_the_digest_depends_on_paths_kinds_modes_and_contents_only() -> None:
    one = files_digest({"a": FILE, "b": Entry("gone")})
    assert files_digest({"b": Entry("gone"), "a": FILE._replace(mtime_ns=99)}) == one
    for other in (
        {"a": FILE},
        {"a": FILE, "c": Entry("gone")},
        {"a": FILE._replace(mode=0o600), "b": Entry("gone")},
        {"a": FILE._replace(content="d2"), "b": Entry("gone")},
        {"a": FILE._replace(kind="link"), "b": Entry("gone")},
    ):
        assert files_digest(other) != one


def test_json_keeps_names_with_newlines_and_bytes_that_are_not_utf_8() -> None:
    names = ["plain", "two\nlines", "\udcff\udcfe", 'quote"', "ünï"]
    manifest = dict.fromkeys(names, FILE)
    assert from_json(to_json(manifest)) == manifest


def test_contents_are_those_of_files_only() -> None:
    link = Entry("link", 0o777, "target")
    assert contents_of([{"a": FILE, "b": link}, {"c": FILE._replace(content="d2")}]) == {"d1", "d2"}
