"""All settings, read once from the environment (`ORCHESTRATE_*`) or a file, then frozen."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from orchestrator.errors import InvalidSettings
from serving.errors import InvalidReference
from serving.references import load_reference
from serving.slo import MAX_NAME_CHARACTERS
from store.database.private_files import data_folder
from store.payload_codec import PayloadCodec

EMBEDDED = "embedded"
ENV_PREFIX = "ORCHESTRATE_"
CONFIG_VARIABLE = f"{ENV_PREFIX}CONFIG"
"""Environment variable that names a TOML file of settings."""

_ENGINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "use up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit"


def default_store() -> str:
    """The default store: a SQLite file in the user's data folder."""
    return f"sqlite:///{data_folder() / 'orchestrate.db'}"


def default_analyzer_store() -> str:
    """The default store of a server's analyzer: runs of flows are not listed with its programs."""
    return f"sqlite:///{data_folder() / 'served.db'}"


class EngineFields(BaseModel):
    """The settings of one engine.

    Attributes:
        engine: "embedded" for vLLM in this process, or the URL of an OpenAI-compatible server.
        model: a Hugging Face id, a folder, "smollm2" or "random" (tiny, meaningless text);
            None: as `default_model`. Of a server: a model that it serves; None: its first.
        api_key: sent to a server.
        policy, policy_params: the scheduling policy of the embedded engine.
        tool_parser: of vLLM, reads tool calls in the model's own format; "none": the model is asked
            for JSON instead; None: chosen by the model. Of a server only "none" counts.
        engine_args: further arguments of vLLM's EngineArgs for the embedded engine, by name.
        restarts: how often a dead engine is started again within ten minutes; 0: never.
        keep_scheduler_state: keep what the engine's scheduler learns for the next engine of the
            model, in the cache folder; None: `orchestrate serve` does, an embedded engine does not.
    """

    engine: str = EMBEDDED
    model: str | None = None
    api_key: str | None = Field(default=None, repr=False)
    policy: str | None = None
    policy_params: dict[str, bool | int | float | str] = Field(default_factory=dict)
    slots: int = 64
    step_tokens: int = 2048
    max_model_tokens: int | None = None
    kv_cache_bytes: int | None = None
    cpu_threads: int | None = None
    dtype: str | None = None
    seed: int = 0
    tool_parser: str | None = None
    engine_args: dict[str, Any] = Field(default_factory=dict)
    restarts: int = Field(default=3, ge=0)
    keep_scheduler_state: bool | None = None


class EngineSettings(EngineFields):
    """The settings of an engine beside the default one; what they leave out has its default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.engine == EMBEDDED:
            if self.api_key is not None:
                raise ValueError("api_key is sent to a server; an embedded engine takes none")
            return self
        if not self.engine.startswith(("http://", "https://")):
            raise ValueError(
                f"engine={self.engine!r}: give 'embedded', or the URL of an OpenAI-compatible"
                " server like http://127.0.0.1:8000/v1"
            )
        if own := self.model_fields_set - {"engine", "model", "api_key", "tool_parser"}:
            names = ", ".join(sorted(own))
            raise ValueError(f"a server has its own {names}: these are of an embedded engine only")
        return self


class Settings(EngineFields, BaseSettings):
    """Settings of the engines, the store and the runtime. Those of EngineFields: the default one.

    Attributes:
        store: a SQLAlchemy URL, such as sqlite:///file or postgresql://...
        environments: the folder of the states of workspaces, which must not lie on an overlay file
            system; None: beside the store.
        engines: further engines by name, for `llm(engine=)`. One engine may be embedded.
        payload_codec: module:name or file.py:name of a PayloadCodec for users' data in the store.
        durable: record arguments and results, so that an interrupted run can be resumed. If both
            this and record_text are false, the store holds no texts of users.
        record_text: record prompts and answers as well.
        fit_every: number of runs of a flow after which its models are fitted in a background
            process; 0: only by `orchestrate patterns fit`.
        lease_s: seconds after which another machine takes over the run of a silent process.
        code_version: of the flows here, such as a commit: a worker takes runs of its own version
            alone. None: of each flow a digest of its file.
        user: the user of runs, for policies with `fairness`; a flow may name another one.
        analyzer: a server learns from its calls, in a process beside it (`orchestrator.analyzer`).
        analyzer_store: where that process records them; no text of a prompt is recorded.
        program_idle_s: a program that a server recognises has ended after so long without a call.
        telemetry: report runs, steps and calls as OpenTelemetry spans, exported according to the
            standard OTEL_* variables.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    store: str = Field(default_factory=default_store)
    environments: str | None = None
    engines: dict[str, EngineSettings] = Field(default_factory=dict)
    payload_codec: str | None = None
    durable: bool = True
    record_text: bool = False
    fit_every: int = Field(default=25, ge=0)
    lease_s: float = Field(default=60.0, ge=1, le=86400)
    code_version: str | None = Field(default=None, min_length=1, max_length=MAX_NAME_CHARACTERS)
    user: str = Field(default="", max_length=MAX_NAME_CHARACTERS)
    analyzer: bool = True
    analyzer_store: str = Field(default_factory=default_analyzer_store)
    program_idle_s: float = Field(default=30.0, gt=0, le=86400)
    telemetry: bool = False
    verbose: bool = False

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given, then the environment, then the file of settings."""
        file = InitSettingsSource(settings_cls, _frozen_members(file_settings()))
        return (init_settings, env_settings, file)

    @field_validator("engines")
    @classmethod
    def _check_engines(
        cls, engines: dict[str, EngineSettings], info: ValidationInfo
    ) -> dict[str, EngineSettings]:
        for name in engines:
            check_engine_name(name)
        embedded = [repr(name) for name, each in engines.items() if each.engine == EMBEDDED]
        if info.data.get("engine") == EMBEDDED:
            embedded.insert(0, "the default engine")
        if len(embedded) > 1:
            raise ValueError(
                f"{' and '.join(embedded)} are embedded, and a process runs one embedded engine:"
                " name a server's URL as the others (`orchestrate serve` starts one)"
            )
        return engines

    def of_engine(self, name: str) -> Settings:
        """The same settings, with a named engine's as those of the default one."""
        return self.model_copy(update={**dict(self.engines[name]), "engines": {}})


def check_engine_name(name: object) -> None:
    """Raise ValueError for what cannot name an engine."""
    if not isinstance(name, str) or not _ENGINE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name an engine: {_NAME_RULE}")


def file_settings(file: str | None = None) -> dict[str, Any]:
    """The settings in a TOML file, by name; empty without one.

    Args:
        file: None: the one that ORCHESTRATE_CONFIG names.
    Raises:
        InvalidSettings: it cannot be read, is no TOML, or has an unknown name.
    """
    file = file or os.environ.get(CONFIG_VARIABLE)
    if not file:
        return {}
    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSettings(f"{CONFIG_VARIABLE}: {file}: {error}") from None
    unknown = sorted(document.keys() - Settings.model_fields.keys())
    if unknown:
        raise InvalidSettings(f"{CONFIG_VARIABLE}: {file} has unknown settings: {unknown}")
    return document


def read_settings(**overrides: Any) -> Settings:
    """Settings: overrides that are not None, then the environment, then ORCHESTRATE_CONFIG's file.

    Raises:
        InvalidSettings: a value is not valid; the message names its variable.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    unknown = given.keys() - Settings.model_fields.keys()
    assert not unknown, f"no such settings: {unknown}"
    try:
        return Settings(**_frozen_members(given))
    except SettingsError as error:  # of a field that is parsed as JSON
        field = re.search(r'field "(\w+)"', str(error))
        name = field[1] if field else "..."
        raise InvalidSettings(f"{ENV_PREFIX}{name.upper()}: {error.__cause__}") from None
    except ValidationError as error:
        problems = dict.fromkeys(_problem(item) for item in error.errors(include_url=False))
        raise InvalidSettings("; ".join(problems)) from None


def _frozen_members(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same, so that a mapping replaces that of another source: dicts would be merged."""
    return {
        name: MappingProxyType(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
    }


def _problem(item: Mapping[str, Any]) -> str:
    """One of pydantic's errors, with the variable, and the place within ENGINES."""
    field, *within = item["loc"]
    place = f"{'.'.join(map(str, within))}: " if within and field == "engines" else ""
    return f"{ENV_PREFIX}{str(field).upper()}: {place}{item['msg'].removeprefix('Value error, ')}"


def payload_codec(settings: Settings) -> PayloadCodec | None:
    """The codec that the settings name, None if they name none; raises InvalidSettings."""
    if settings.payload_codec is None:
        return None
    try:
        codec: PayloadCodec = load_reference(settings.payload_codec)
    except InvalidReference as error:
        raise InvalidSettings(f"{ENV_PREFIX}PAYLOAD_CODEC: {error}") from error
    if (
        not isinstance(codec, PayloadCodec)
        or isinstance(codec, type)
        or not isinstance(codec.name, str)
        or "\x00" in codec.name
        or not codec.name
    ):
        raise InvalidSettings(
            f"{ENV_PREFIX}PAYLOAD_CODEC: {settings.payload_codec} is no object with name, encode"
            " and decode (see PayloadCodec)"
        )
    return codec
