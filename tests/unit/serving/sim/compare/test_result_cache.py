from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path
from typing import NoReturn

import pytest

from serving.sim.compare.result_cache import ResultCache, code_version, results_folder
from tests.unit.serving.sim.bench_examples import together

KEY = {"sort": "run", "load": 0.7, "policy": {"name": "fcfs", "params": {}}}
RESULT = {"token_goodput": 0.1 + 0.2, "curves": [1, 2.5, None]}


@pytest.fixture
def cache(tmp_path: Path) -> ResultCache:
    return ResultCache(tmp_path / "deep" / "bench", "v1")


def test_a_kept_result_is_the_same_to_the_last_bit(cache: ResultCache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, RESULT)
    assert cache.get(KEY) == RESULT
    assert cache.get(dict(reversed(KEY.items()))) == RESULT
    assert cache.get(KEY | {"load": 0.8}) is None


def test_another_version_of_the_code_sees_nothing_of_it(cache: ResultCache) -> None:
    cache.put(KEY, RESULT)
    assert ResultCache(cache.folder, "v2").get(KEY) is None


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"null", b'{"key": {}, "result": {}}', b"\xff\xfe", b"[" * 100_000]
)
def test_a_damaged_result_is_told_of_and_written_anew(
    cache: ResultCache, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cache.put(KEY, RESULT)
    [file] = cache.folder.iterdir()
    file.write_bytes(damage)
    with caplog.at_level(logging.WARNING, "orchestrate"):
        assert cache.get(KEY) is None
    assert "computed again" in caplog.text
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
def test_what_was_changed_and_is_still_json_is_damaged(
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
        assert "computed again: its checksum" in caplog.text
    file.write_text(json.dumps(document, indent=2, sort_keys=True))
    assert cache.get(KEY) == RESULT  # the same, set otherwise


def test_only_files_that_nobody_writes_any_more_are_removed(cache: ResultCache) -> None:
    cache.remove_abandoned()  # there is no folder yet
    cache.put(KEY, RESULT)
    [kept] = cache.folder.iterdir()
    under_way, abandoned = (cache.folder / name for name in (".now.part", ".then.part"))
    for path in (under_way, abandoned):
        path.touch()
    for path in (kept, abandoned):
        os.utime(path, (0, 0))
    cache.remove_abandoned()
    assert set(cache.folder.iterdir()) == {kept, under_way}


def test_a_folder_that_may_not_be_entered_holds_nothing_to_remove(
    cache: ResultCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, pattern: str) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "glob", refuse)  # as it is for all but root
    cache.remove_abandoned()


def test_many_writers_leave_one_whole_result_and_no_rests(cache: ResultCache) -> None:
    large = {"values": list(range(20_000))}
    seen = []

    def write_and_read() -> None:
        for _ in range(10):
            cache.put(KEY, large)
            seen.append(cache.get(KEY))

    together(*[write_and_read] * 4)
    assert seen == [large] * 40
    assert len(list(cache.folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_only_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ResultCache(tmp_path / "file" / "bench", "v1")
    with caplog.at_level(logging.WARNING, "orchestrate"):
        cache.put(KEY, RESULT)
        assert cache.get(KEY) is None
    assert "cannot be kept" in caplog.text


def test_results_lie_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORCHESTRATE_CACHE", str(tmp_path))
    assert results_folder() == tmp_path / "bench"


def test_the_version_is_that_of_every_source_file(
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
