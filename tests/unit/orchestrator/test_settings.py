"""Settings: read from the environment, frozen; errors name the variable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.errors import InvalidSettings
from orchestrator.settings import EMBEDDED, EngineSettings, Settings, default_store, read_settings

EXAMPLES: dict[str, tuple[str, object]] = {
    "store": ("sqlite:///x.db", "sqlite:///x.db"),
    "engine": ("http://localhost:8000/v1", "http://localhost:8000/v1"),
    "model": ("a/b", "a/b"),
    "engines": (
        '{"judge": {"engine": "http://localhost:9000/v1", "model": "a/c", "api_key": "sk-2"}}',
        {"judge": EngineSettings(engine="http://localhost:9000/v1", model="a/c", api_key="sk-2")},
    ),
    "policy": ("edf", "edf"),
    "policy_params": (
        '{"p": 1, "q": 0.5, "r": "x", "s": true}',
        {"p": 1, "q": 0.5, "r": "x", "s": True},
    ),
    "slots": ("7", 7),
    "step_tokens": ("99", 99),
    "max_model_tokens": ("512", 512),
    "kv_cache_bytes": ("1024", 1024),
    "cpu_threads": ("3", 3),
    "dtype": ("bfloat16", "bfloat16"),
    "seed": ("3", 3),
    "tool_parser": ("hermes", "hermes"),
    "engine_args": ('{"tensor_parallel_size": 2}', {"tensor_parallel_size": 2}),
    "restarts": ("5", 5),
    "keep_scheduler_state": ("1", True),
    "api_key": ("sk-1", "sk-1"),
    "durable": ("false", False),
    "environments": ("/var/states", "/var/states"),
    "payload_codec": ("my_codecs:encryption", "my_codecs:encryption"),
    "record_text": ("true", True),
    "fit_every": ("5", 5),
    "lease_s": ("15", 15.0),
    "code_version": ("3f2a", "3f2a"),
    "user": ("alice", "alice"),
    "analyzer": ("false", False),
    "analyzer_store": ("sqlite:///served.db", "sqlite:///served.db"),
    "program_idle_s": ("5", 5.0),
    "telemetry": ("true", True),
    "verbose": ("1", True),
}

BAD = {
    "policy_params": ["", "p=1", "[1]", '"text"', '{"p": [1]}', '{"p": null}', "{"],
    "engines": [
        "",
        "judge",
        "[1]",
        '{"judge": "http://localhost:9000/v1"}',
        '{"judge": {"engine": "localhost:9000"}}',
        '{"judge": {"engine": "http://localhost:9000", "modle": "x"}}',
        '{"judge": {"engine": "http://localhost:9000", "slots": 4}}',
        '{"judge": {"engine": "embedded"}}',
        '{"the judge": {"engine": "http://localhost:9000"}}',
        '{"": {"engine": "http://localhost:9000"}}',
        "{",
    ],
    "slots": ["", "many", "1.5"],
    "step_tokens": ["x"],
    "max_model_tokens": ["x"],
    "kv_cache_bytes": ["64MB"],
    "seed": ["x"],
    "durable": ["perhaps"],
    "record_text": ["perhaps", ""],
    "fit_every": ["-1", "often"],
    "lease_s": ["0.5", "1e9", "long"],
    "code_version": [""],
    "user": ["x" * 257],
    "analyzer": ["perhaps", ""],
    "program_idle_s": ["0", "long"],
    "telemetry": ["perhaps", ""],
    "verbose": ["2"],
}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the user's environment."""
    for name in os.environ:
        if name.upper().startswith("ORCHESTRATE_"):
            monkeypatch.delenv(name)


def test_every_field_has_an_example_here() -> None:
    assert EXAMPLES.keys() == Settings.model_fields.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_field_is_read_from_its_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = EXAMPLES[name]
    assert getattr(read_settings(), name) != value
    monkeypatch.setenv(f"ORCHESTRATE_{name.upper()}", text)
    setting = getattr(read_settings(), name)
    assert (setting, type(setting)) == (value, type(value))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_override_takes_precedence_over_the_environment_unless_it_is_none(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, value = EXAMPLES[name]
    default = getattr(read_settings(), name)
    monkeypatch.setenv(f"ORCHESTRATE_{name.upper()}", text)
    assert getattr(read_settings(**{name: None}), name) == value
    if default is not None:
        assert getattr(read_settings(**{name: default}), name) == default


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in BAD for text in BAD[name]])
def test_the_error_of_an_invalid_value_names_its_variable(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"ORCHESTRATE_{name.upper()}", text)
    with pytest.raises(InvalidSettings) as refused:
        read_settings()
    assert str(refused.value).startswith(f"ORCHESTRATE_{name.upper()}: ")


def test_the_error_names_all_variables_with_invalid_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATE_SLOTS", "many")
    monkeypatch.setenv("ORCHESTRATE_SEED", "none")
    with pytest.raises(InvalidSettings, match=r"ORCHESTRATE_SLOTS: .*; ORCHESTRATE_SEED: "):
        read_settings()


def test_other_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATE_CACHE", "/tmp/cache")
    monkeypatch.setenv("SLOTS", "9")
    assert read_settings() == read_settings()
    assert read_settings().slots == 64


def test_settings_are_frozen() -> None:
    settings = read_settings()
    with pytest.raises(ValidationError):
        settings.slots = 3


def test_an_unknown_override_fails_an_assertion() -> None:
    with pytest.raises(AssertionError, match="modle"):
        read_settings(modle="demo")


def test_the_repr_does_not_contain_the_api_key() -> None:
    assert "sk-secret" not in repr(read_settings(api_key="sk-secret"))


def test_the_repr_does_not_contain_the_api_key_of_a_named_engine() -> None:
    named = {"judge": {"engine": "http://localhost:9000", "api_key": "sk-secret"}}
    assert "sk-secret" not in repr(read_settings(engines=named))


def test_named_engines_replace_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATE_ENGINES", '{"one": {"engine": "http://localhost:1"}}')
    two = {"two": {"engine": "http://localhost:2"}}
    assert read_settings(engines=two).engines.keys() == {"two"}


def test_one_of_the_engines_may_be_embedded() -> None:
    named = {"small": {"engine": EMBEDDED, "model": "random", "slots": 4}}
    settings = read_settings(engine="http://localhost:8000", engines=named, store="sqlite:///x.db")
    own = settings.of_engine("small")
    assert (own.engine, own.model, own.slots, own.store) == (EMBEDDED, "random", 4, settings.store)
    with pytest.raises(InvalidSettings, match="the default engine and 'small' are embedded"):
        read_settings(engines=named)
    with pytest.raises(InvalidSettings, match="'large' and 'small' are embedded"):
        read_settings(engine="http://localhost:8000", engines={"large": {}} | named)


def test_the_error_of_a_named_engine_says_which_and_what() -> None:
    with pytest.raises(InvalidSettings, match=r"ORCHESTRATE_ENGINES: judge\.slots: "):
        read_settings(engines={"judge": {"engine": EMBEDDED, "slots": "many"}})


def test_by_default_the_engine_is_embedded_and_texts_are_not_recorded() -> None:
    settings = read_settings()
    assert settings.engine == EMBEDDED
    assert settings.record_text is False
    assert settings.store == default_store()
    assert Path(settings.store.removeprefix("sqlite:///")).is_absolute()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty file of settings that the environment names."""
    file = tmp_path / "settings.toml"
    file.touch()
    monkeypatch.setenv("ORCHESTRATE_CONFIG", str(file))
    return file


def test_a_file_of_settings_counts_below_the_environment_and_what_is_given(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('slots = 8\nseed = 5\ndtype = "bfloat16"\n[policy_params]\npace = 0.1\n')
    monkeypatch.setenv("ORCHESTRATE_SEED", "6")
    settings = read_settings(dtype="float32")
    assert (settings.slots, settings.seed, settings.dtype) == (8, 6, "float32")
    assert settings.policy_params == {"pace": 0.1}
    monkeypatch.setenv("ORCHESTRATE_POLICY_PARAMS", '{"price": false}')
    assert read_settings().policy_params == {"price": False}


@pytest.mark.parametrize("text", ["slots = ", "slot = 8", "[serve]\nport = 1"])
def test_an_invalid_file_of_settings_is_named(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidSettings, match=r"ORCHESTRATE_CONFIG: .*settings\.toml"):
        read_settings()


def test_a_missing_file_of_settings_is_an_error(file: Path) -> None:
    file.unlink()
    with pytest.raises(InvalidSettings, match="No such file"):
        read_settings()
