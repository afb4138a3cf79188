"""The cache of results: exact, atomic, and safe against damaged files."""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from serving.policies.table import PolicySpec
from serving.sim.compare.result_cache import (
    CALM_FOLDER,
    ResultCache,
    code_version,
    results_folder,
)
from tests.unit.serving.sim.bench_examples import run_concurrently

KEY = {"sort": "run", "load": 0.7, "policy": {"name": "fcfs", "params": {}}}
RESULT = {"token_goodput": 0.1 + 0.2, "curves": [1, 2.5, None]}


@pytest.fixture
def cache(tmp_path: Path) -> ResultCache:
    return ResultCache(tmp_path / "deep" / "bench", "v1")


def test_a_cached_result_is_exactly_the_stored_one(cache: ResultCache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, RESULT)
    assert cache.get(KEY) == RESULT
    assert cache.get(dict(reversed(KEY.items()))) == RESULT
    assert cache.get(KEY | {"load": 0.8}) is None


def test_results_of_another_code_version_are_ignored(cache: ResultCache) -> None:
    cache.put(KEY, RESULT)
    assert ResultCache(cache.folder, "v2").get(KEY) is None


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"null", b'{"key": {}, "result": {}}', b"\xff\xfe", b"[" * 100_000]
)
def test_a_damaged_result_is_logged_and_replaced(
    cache: ResultCache, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cache.put(KEY, RESULT)
    [file] = cache.folder.iterdir()
    file.write_bytes(damage)
    with caplog.at_level(logging.WARNING, "orchestrate"):
        assert cache.get(KEY) is None
    assert "computing it again" in caplog.text
    cache.put(KEY, RESULT)
    assert cache.get(KEY) == RESULT


@pytest.mark.parametrize(
    "damage",
    [
        {"token_goodput": math.nan},
        {"token_goodput": math.inf},
        {"token_goodput": 0.3},
        {"token_goodput": "0.3"},
        {"curves": [1, 2.5]},
    ],
)
def test_a_changed_result_that_is_still_json_counts_as_damaged(
    cache: ResultCache, damage: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    cache.put(KEY, RESULT)
    [file] = cache.folder.iterdir()
    document = json.loads(file.read_bytes())
    for changed in (RESULT | damage, damage, {}):
        caplog.clear()
        file.write_text(json.dumps(document | {"result": changed}))
        with caplog.at_level(logging.WARNING, "orchestrate"):
            assert cache.get(KEY) is None
        assert "computing it again: its checksum" in caplog.text
    file.write_text(json.dumps(document, indent=2, sort_keys=True))
    assert cache.get(KEY) == RESULT  # the same content in another layout


def test_only_old_unfinished_files_are_removed(cache: ResultCache) -> None:
    cache.remove_abandoned()  # there is no folder yet
    cache.put(KEY, RESULT)
    [finished] = cache.folder.iterdir()
    recent, abandoned = (cache.folder / name for name in (".now.part", ".then.part"))
    for path in (recent, abandoned):
        path.touch()
    for path in (finished, abandoned):
        os.utime(path, (0, 0))
    cache.remove_abandoned()
    assert set(cache.folder.iterdir()) == {finished, recent}


def test_removing_abandoned_files_ignores_an_unreadable_folder(
    cache: ResultCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(path: Path, pattern: str) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "glob", deny)  # root would not be denied
    cache.remove_abandoned()


def test_concurrent_writers_leave_one_complete_result_and_no_other_file(cache: ResultCache) -> None:
    large = {"values": list(range(20_000))}
    read = []

    def write_and_read() -> None:
        for _ in range(10):
            cache.put(KEY, large)
            read.append(cache.get(KEY))

    run_concurrently(*[write_and_read] * 4)
    assert read == [large] * 40
    assert len(list(cache.folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("a file instead of a folder")
    cache = ResultCache(tmp_path / "file" / "bench", "v1")
    with caplog.at_level(logging.WARNING, "orchestrate"):
        cache.put(KEY, RESULT)
        assert cache.get(KEY) is None
    assert "cannot store a result" in caplog.text


@pytest.mark.parametrize(
    ("key", "remains"),
    [
        ({"sort": "run", "policy": PolicySpec("fcfs").to_json()}, True),
        ({"sort": "run", "policy": PolicySpec("calm").to_json()}, False),
        ({"sort": "run", "policy": PolicySpec("calm", {"pace": 0.1}).to_json()}, False),
        ({"sort": "capacity"}, True),
        ({"sort": "bound"}, True),
        ({"sort": "live", "policy": PolicySpec("fcfs").to_json()}, False),
    ],
)
def test_results_of_other_policies_remain_if_only_calm_has_changed(
    tmp_path: Path, key: dict[str, Any], remains: bool
) -> None:
    ResultCache(tmp_path, "v1", "without calm").put(key, RESULT)
    assert ResultCache(tmp_path, "v2", "without calm").get(key) == (RESULT if remains else None)
    assert ResultCache(tmp_path, "v1", "changed").get(key) == (None if remains else RESULT)


def test_the_cache_of_this_code_has_the_versions_with_and_without_calm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from serving.sim.compare import result_cache as module

    assert (module._PACKAGE / CALM_FOLDER / "calm.py").is_file()
    monkeypatch.setattr(module, "_PACKAGE", tmp_path)
    (tmp_path / CALM_FOLDER).mkdir(parents=True)
    caches = [ResultCache.of_this_code()]
    for path in (f"{CALM_FOLDER}/calm.py", "policies/table.py"):
        (tmp_path / path).write_text("1")
        caches.append(ResultCache.of_this_code())
    first, calm_changed, other_changed = caches
    assert first.version != calm_changed.version
    assert first.baseline_version == calm_changed.baseline_version
    assert calm_changed.version != other_changed.version
    assert calm_changed.baseline_version != other_changed.baseline_version


def test_results_are_stored_in_the_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ORCHESTRATE_CACHE", str(tmp_path))
    assert results_folder() == tmp_path / "bench"


def test_the_code_version_depends_on_the_path_and_content_of_every_source_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from serving.sim.compare import result_cache as module

    monkeypatch.setattr(module, "_PACKAGE", tmp_path)
    versions = [code_version()]
    for path, text in (("a.py", "1"), ("a.py", "2"), ("b.py", "2"), ("sub/a.py", "2")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
        versions.append(code_version())
        assert code_version() == versions[-1]
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    versions.append(code_version())
    assert len(set(versions)) == len(versions)
