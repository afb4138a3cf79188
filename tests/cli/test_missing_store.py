"""Commands that read a store which does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_samples import exit_code

READING = [
    ["ps"],
    ["ps", "--json"],
    ["ps", "--status", "failed"],
    ["show"],
    ["show", "3f2a"],
    ["logs"],
    ["logs", "3f2a", "--follow"],
    ["checkpoints"],
    ["checkpoints", "3f2a", "--json"],
    ["diff", "3f2a"],
    ["diff", "3f2a@start", "abcdef12", "--stat"],
    ["changeset", "3f2a", "--json"],
    ["apply", "3f2a", "--yes"],
    ["discard", "3f2a", "--yes"],
    ["shell", "3f2a", "--command", "true"],
    ["watch"],
    ["watch", "--once"],
    ["watch", "3f2a"],
    ["gc"],
    ["gc", "--dry-run"],
    ["patterns", "list"],
    ["patterns", "show", "article"],
    ["patterns", "fit"],
    ["patterns", "explain"],
    ["resume", "3f2a"],
    ["resume", "--orphans"],
    ["answer", "3f2a"],
    ["answer", "3f2a", "yes"],
]


@pytest.mark.parametrize("by_option", [True, False], ids=["option", "environment"])
@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_named_store_without_a_file_is_bad_input_and_is_not_created(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    by_option: bool,
) -> None:
    url = f"sqlite:///{tmp_path / 'missing.db'}"
    if not by_option:
        monkeypatch.setenv("ORCHESTRATE_STORE", url)
    assert exit_code(*command, *(["--store", url] if by_option else [])) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    error = "".join(captured.err.split())
    assert f"nostoreat{url}:thefiledoesnotexist" in error
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["ps"], 0),
        (["gc"], 0),
        (["patterns", "list"], 0),
        (["resume", "--orphans"], 0),
        (["show"], 2),
        (["show", "3f2a"], 2),
    ],
)
def test_the_default_store_may_be_new(
    new_default_store: Path, capsys: pytest.CaptureFixture[str], command: list[str], code: int
) -> None:
    assert exit_code(*command) == code
    assert "does not exist" not in capsys.readouterr().err
    assert exit_code(*command, "--store", f"sqlite:///{new_default_store}") == code
    assert "does not exist" not in capsys.readouterr().err
    assert not new_default_store.exists()
