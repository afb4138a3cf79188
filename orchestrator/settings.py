"""All settings, read once from the environment (`ORCHESTRATE_*`), then frozen."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from orchestrator.errors import InvalidSettings
from serving.errors import InvalidReference
from serving.references import load_reference
from serving.slo import MAX_NAME_CHARACTERS
from store.database.private_files import data_folder
from store.payload_codec import PayloadCodec

EMBEDDED = "embedded"
ENV_PREFIX = "ORCHESTRATE_"


def default_store() -> str:
    """The default store: a SQLite file in the user's data folder."""
    return f"sqlite:///{data_folder() / 'orchestrate.db'}"


class Settings(BaseSettings):
    """Settings of the engine, the store and the runtime.

    Attributes:
        store: a SQLAlchemy URL, such as sqlite:///file or postgresql://...
        engine: "embedded" for vLLM in this process, or the URL of an OpenAI-compatible server.
        model: a Hugging Face id, a folder, "smollm2" or "random" (tiny, meaningless text);
            None: as `default_model`.
        policy, policy_params: the scheduling policy of the embedded engine.
        tool_parser: of vLLM, reads tool calls in the model's own format; "none": the model is asked
            for JSON instead; None: chosen by the model. Of a server only "none" counts.
        payload_codec: module:name or file.py:name of a PayloadCodec for users' data in the store.
        durable: record arguments and results, so that an interrupted run can be resumed. If both
            this and record_text are false, the store holds no texts of users.
        record_text: record prompts and answers as well.
        fit_every: number of runs of a flow after which its models are fitted in a background
            process; 0: only by `orchestrate patterns fit`.
        user: the user of runs, for policies with `fairness`; a flow may name another one.
        telemetry: report runs, steps and calls as OpenTelemetry spans, exported according to the
            standard OTEL_* variables.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    store: str = Field(default_factory=default_store)
    engine: str = EMBEDDED
    model: str | None = None
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
    api_key: str | None = Field(default=None, repr=False)
    payload_codec: str | None = None
    durable: bool = True
    record_text: bool = False
    fit_every: int = Field(default=25, ge=0)
    user: str = Field(default="", max_length=MAX_NAME_CHARACTERS)
    telemetry: bool = False
    verbose: bool = False


def read_settings(**overrides: Any) -> Settings:
    """Settings from the environment; overrides that are not None take precedence.

    Raises:
        InvalidSettings: a value is not valid; the message names its variable.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    unknown = given.keys() - Settings.model_fields.keys()
    assert not unknown, f"no such settings: {unknown}"
    try:
        settings = Settings(**given)
    except SettingsError as error:  # policy_params is the only field that is parsed as JSON
        raise InvalidSettings(f"{ENV_PREFIX}POLICY_PARAMS: {error.__cause__}") from None
    except ValidationError as error:
        problems = dict.fromkeys(
            f"{ENV_PREFIX}{str(item['loc'][0]).upper()}: {item['msg']}"
            for item in error.errors(include_url=False)
        )
        raise InvalidSettings("; ".join(problems)) from None
    if "policy_params" in given:  # a mapping would be merged with the environment's
        return settings.model_copy(update={"policy_params": given["policy_params"]})
    return settings


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
