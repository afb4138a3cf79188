"""The named errors between a caller and an engine: the cause, and what to do.

Every error keeps its constructor's arguments, so that it survives pickling between processes.
"""

from __future__ import annotations


class ServingError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidSlo(ServingError):
    """The caller's SLO is malformed; the request was never admitted."""

    def __init__(self, key: str, value: object, reason: str) -> None:
        super().__init__(key, value, reason)

    def __str__(self) -> str:
        return "{}={!r}: {}".format(*self.args)


class InvalidEngineConfig(ServingError):
    """An engine setting is out of range or unknown."""

    def __init__(self, setting: str, value: object, reason: str) -> None:
        super().__init__(setting, value, reason)

    def __str__(self) -> str:
        return "{}={!r}: {}".format(*self.args)


class InvalidApiKeys(ServingError):
    """A file of API keys cannot be used; the place is an entry, or "" for the whole file."""

    def __init__(self, file: str, place: str, reason: str) -> None:
        super().__init__(file, place, reason)

    def __str__(self) -> str:
        return ": ".join(part for part in self.args if part)


class InvalidReference(ServingError):
    """A reference `module:name` or `file.py:name` cannot be loaded."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(reference, reason)

    def __str__(self) -> str:
        return "{}: {}".format(*self.args)


class InvalidRequest(ServingError):
    """The engine cannot serve this request; the reason says what to change."""

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(request_id, reason)

    def __str__(self) -> str:
        return "{}: {}".format(*self.args)


class ToolsNotSupported(ServingError):
    """The engine does not read tool calls in the model's own format; ask for JSON instead."""

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(request_id, reason)

    def __str__(self) -> str:
        return "{}: the engine does not take tools: {}".format(*self.args)


class PromptTooLong(ServingError):
    """The prompt exceeds the engine's limit; a retry will not help."""

    def __init__(self, request_id: str, prompt_tokens: int, limit_tokens: int) -> None:
        super().__init__(request_id, prompt_tokens, limit_tokens)

    def __str__(self) -> str:
        return "{}: {} prompt tokens, the engine's limit is {}".format(*self.args)


class RequestDropped(ServingError):
    """The scheduler ended the request, as its SLO asked: it waited too long or is too late."""

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(request_id, reason)

    def __str__(self) -> str:
        return "{} was dropped by the scheduler: {}".format(*self.args)


class RequestFailed(ServingError):
    """The engine ended this request without an answer, and still serves the others."""

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(request_id, reason)

    def __str__(self) -> str:
        return "{} failed in the engine: {}".format(*self.args)


class AnswerLost(ServingError):
    """The engine died within an answer of which the caller has a part; a retry may succeed."""

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(request_id, reason)

    def __str__(self) -> str:
        return "the rest of the answer to {} is lost: {}".format(*self.args)


class StructuredOutputInvalid(ServingError):
    """The text is not valid under the schema, most often because max_tokens cut it."""

    def __init__(self, request_id: str, finish_reason: str, reason: str) -> None:
        super().__init__(request_id, finish_reason, reason)

    def __str__(self) -> str:
        request_id, finish_reason, reason = self.args
        hint = "; raise max_tokens or bound the schema" if finish_reason == "length" else ""
        return f"{request_id}: no valid structured output ({reason}){hint}"


class ModelNotLoaded(ServingError):
    """The engine could not load this model."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(model, reason)

    def __str__(self) -> str:
        model, reason = self.args
        advice = (
            "It is created in the cache folder (ORCHESTRATE_CACHE): "
            "check the free space there, and your permission to write to it"
            if model.startswith(("random", "smollm2"))
            else "Give a folder or Hugging Face id that this machine can reach, "
            "or omit --model to use a model that comes with this program"
        )
        return f"cannot load model {model!r}: {reason}. {advice}"


class EngineMissing(ServingError):
    """vLLM is not installed, or not in the version that the scheduler is pinned to."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return f"{self.args[0]}; run `orchestrate doctor` to see how to fix it"


class RayMissing(ServingError):
    """Ray, which starts the replicas of a server, is not installed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return f"replicas need Ray: {self.args[0]}; pip install 'orchestrate-llm[ray]'"


class RayUnreachable(ServingError):
    """There is no Ray cluster at this address, or Ray cannot start on this machine."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)

    def __str__(self) -> str:
        address, reason = self.args
        return (
            f"no Ray at {address}: {reason}. `ray status` says whether a cluster runs; one with "
            "tokens needs RAY_AUTH_MODE=token here too. Without --ray, Ray is started here"
        )


class ReplicaFailed(ServingError):
    """A replica of a server ended while it started; the reason says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return f"a replica cannot start: {self.args[0]}"


class EngineBusy(ServingError):
    """This process already has an embedded engine; vLLM supports one per process."""

    def __init__(self, model: str) -> None:
        super().__init__(model)

    def __str__(self) -> str:
        return f"this process already runs an embedded engine ({self.args[0]}); share or close it"


class EngineClosed(ServingError):
    """The engine was closed before the request ended."""

    def __init__(self, model: str) -> None:
        super().__init__(model)

    def __str__(self) -> str:
        return f"the engine ({self.args[0]}) is closed"


class EngineDied(ServingError):
    """The engine's own loop failed: every waiting call gets this error, and so do new calls."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)

    def __str__(self) -> str:
        return f"the engine died: {self.args[0]}"


class PolicyFailed(ServingError):
    """A scheduling policy raised an error, or returned no valid plan."""

    def __init__(self, policy: str, reason: str) -> None:
        super().__init__(policy, reason)

    def __str__(self) -> str:
        return "policy {}: {}".format(*self.args)


class RemoteUnavailable(ServingError):
    """The remote engine did not answer."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)

    def __str__(self) -> str:
        return "no answer from {}: {}".format(*self.args)


class RemoteRefused(ServingError):
    """The remote engine answered with an error of its own."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(url, status, reason)

    def __str__(self) -> str:
        return "{} answered {}: {}".format(*self.args)


class ModelNotServed(ServingError):
    """The remote engine answers, but serves other models."""

    def __init__(self, url: str, model: str, served: tuple[str, ...]) -> None:
        super().__init__(url, model, served)

    def __str__(self) -> str:
        url, model, served = self.args
        return f"{url} does not serve {model!r}; it serves {', '.join(served) or 'no model'}"


class EmbeddingsNotSupported(ServingError):
    """The engine generates text, and computes no embeddings."""

    def __init__(self, engine: str, model: str) -> None:
        super().__init__(engine, model)

    def __str__(self) -> str:
        engine, model = self.args
        return (
            f"engine {engine} with model {model!r} computes no embeddings: name a server of an"
            " embedding model as an engine (ORCHESTRATE_ENGINES), and call embed(engine=NAME)"
        )


class CorruptFeatures(ServingError):
    """The recorded features of a call are damaged; the call cannot be used for training."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return f"recorded features of a call cannot be read: {self.args[0]}"


class UnknownFeaturesVersion(ServingError):
    """The features of a call were recorded by another version of the program."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(found, known)

    def __str__(self) -> str:
        return "recorded features of a call have version {}, this program reads {}".format(
            *self.args
        )


class TooFewSamples(ServingError):
    """There are too few finished calls to fit a length model; run the application more often."""

    def __init__(self, found: int, needed: int) -> None:
        super().__init__(found, needed)

    def __str__(self) -> str:
        return "{} finished calls are too few to fit a length model; {} are needed".format(
            *self.args
        )


class CorruptModel(ServingError):
    """The file of a length model is damaged, or is another kind of file; fit the model again."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        return "{} is not a valid length model ({}); fit it again".format(*self.args)


class UnknownModelVersion(ServingError):
    """A saved length model was written by another version of this program; fit it again."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(path, found, known)

    def __str__(self) -> str:
        return "{} has model version {}, this program reads {}; fit it again".format(*self.args)


class ModelNotSaved(ServingError):
    """A length model could not be written; the former file is unchanged."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        return "cannot write the length model {}: {}".format(*self.args)


class ModelUnreadable(ServingError):
    """A saved length model cannot be opened: the file or the permission to read it is missing."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        return "cannot read the length model {}: {}".format(*self.args)


# A dropped request leaves the engine as an aborted one, with the error in its stop reason: the one
# field that vLLM passes unchanged from its scheduler to callers, in process and over HTTP.
_DROPPED = "slo_dropped: "
_REJECTED = "slo_rejected: "
_LOST = "answer_lost: "


BEGUN_STOP_REASON = "begun"
"""Of a dummy (`Slo.dummy`): its turn has come."""


def dropped_stop_reason(reason: str) -> str:
    """The stop reason of a dropped request."""
    return _DROPPED + reason


def rejected_stop_reason(error: InvalidSlo) -> str:
    """The stop reason of a request with malformed SLO tags."""
    return _REJECTED + str(error)


def lost_message(reason: str) -> str:
    """The message of a server's error for an answer, the rest of which is lost."""
    return _LOST + reason


def error_of_stop_reason(request_id: str, stop_reason: object) -> ServingError | None:
    """The named error in a stop reason, or in a server's message; None if it names none."""
    if not isinstance(stop_reason, str):
        return None
    if stop_reason == BEGUN_STOP_REASON:
        return InvalidSlo("slo_dummy", True, "only a server tells that the turn of a dummy came")
    if stop_reason.startswith(_DROPPED):
        return RequestDropped(request_id, stop_reason.removeprefix(_DROPPED))
    if stop_reason.startswith(_REJECTED):
        return InvalidSlo("slo", request_id, stop_reason.removeprefix(_REJECTED))
    if stop_reason.startswith(_LOST):
        return AnswerLost(request_id, stop_reason.removeprefix(_LOST))
    return None
