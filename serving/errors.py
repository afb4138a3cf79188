"""What can go wrong between a caller and an engine: whose fault it is, and what to do.

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


class InvalidReference(ServingError):
    """`module:name` or `file.py:name` names nothing that can be used."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(reference, reason)

    def __str__(self) -> str:
        return "{}: {}".format(*self.args)


class InvalidRequest(ServingError):
    """The engine cannot take this request as it stands; the reason says what to change."""

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(request_id, reason)

    def __str__(self) -> str:
        return "{}: {}".format(*self.args)


class PromptTooLong(ServingError):
    """The prompt can never fit this engine; retrying will not help."""

    def __init__(self, request_id: str, prompt_tokens: int, limit_tokens: int) -> None:
        super().__init__(request_id, prompt_tokens, limit_tokens)

    def __str__(self) -> str:
        return "{}: {} prompt tokens, the engine's limit is {}".format(*self.args)


class RequestDropped(ServingError):
    """The scheduler gave the request up, as its SLO asked: it waited too long or came too late."""

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(request_id, reason)

    def __str__(self) -> str:
        return "{} was dropped by the scheduler: {}".format(*self.args)


class RequestFailed(ServingError):
    """The engine ended this request without an answer, and goes on with the others."""

    def __init__(self, request_id: str, reason: str) -> None:
        super().__init__(request_id, reason)

    def __str__(self) -> str:
        return "{} failed in the engine: {}".format(*self.args)


class StructuredOutputInvalid(ServingError):
    """The text does not parse as the schema asked for, most often because it was cut."""

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
        mend = (
            "It is made in the cache folder (ORCHESTRATE_CACHE), which needs room and your rights"
            if model == "demo"
            else "Give a folder or Hugging Face id that this machine can reach, "
            "or leave --model out for the demo model"
        )
        return f"cannot load model {model!r}: {reason}. {mend}"


class EngineMissing(ServingError):
    """vLLM is not installed, or not the version that the scheduler is pinned to."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return f"{self.args[0]}; run `orchestrate doctor` to see how to mend it"


class EngineBusy(ServingError):
    """This process already has an embedded engine; vLLM takes one in a process."""

    def __init__(self, model: str) -> None:
        super().__init__(model)

    def __str__(self) -> str:
        return f"this process already runs an embedded engine ({self.args[0]}); share or close it"


class EngineClosed(ServingError):
    """The engine was closed while, or before, the request ran."""

    def __init__(self, model: str) -> None:
        super().__init__(model)

    def __str__(self) -> str:
        return f"the engine ({self.args[0]}) is closed"


class EngineDied(ServingError):
    """The engine's own loop failed; every waiting caller is told, and it takes no new work."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)

    def __str__(self) -> str:
        return f"the engine died: {self.args[0]}"


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


class CorruptFeatures(ServingError):
    """The recorded features of a call are damaged; that call cannot be learned from."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)

    def __str__(self) -> str:
        return f"recorded features of a call cannot be read: {self.args[0]}"


class UnknownFeaturesVersion(ServingError):
    """The features of a call were recorded by another version of this program."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(found, known)

    def __str__(self) -> str:
        return "recorded features of a call have version {}, this program reads {}".format(
            *self.args
        )


class TooFewSamples(ServingError):
    """Too few finished calls to learn from; run the application more, nothing is broken."""

    def __init__(self, found: int, needed: int) -> None:
        super().__init__(found, needed)

    def __str__(self) -> str:
        return "{} finished calls are too few to learn answer lengths from; {} are needed".format(
            *self.args
        )


class CorruptModel(ServingError):
    """A saved length model is damaged or was never one; fit it again."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        return "{} is no sound length model ({}); fit it again".format(*self.args)


class UnknownModelVersion(ServingError):
    """A saved length model was written by another version of this program; fit it again."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(path, found, known)

    def __str__(self) -> str:
        return "{} has model version {}, this program reads {}; fit it again".format(*self.args)


class ModelNotSaved(ServingError):
    """A length model could not be written; the one that stood there before is unharmed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        return "cannot write the length model {}: {}".format(*self.args)


class ModelUnreadable(ServingError):
    """A saved length model cannot be opened: it is missing, or the rights to read it are."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        return "cannot read the length model {}: {}".format(*self.args)


# A dropped request leaves the engine as an aborted one whose stop reason carries the error: it is
# the one field that vLLM passes unchanged from its scheduler to callers, in process and over HTTP.
_DROPPED = "slo_dropped: "
_REJECTED = "slo_rejected: "


def dropped_stop_reason(reason: str) -> str:
    """The stop reason with which a dropped request leaves the engine."""
    return _DROPPED + reason


def rejected_stop_reason(error: InvalidSlo) -> str:
    """The stop reason with which a request with malformed SLO tags leaves the engine."""
    return _REJECTED + str(error)


def error_of_stop_reason(request_id: str, stop_reason: object) -> ServingError | None:
    """The named error that a stop reason carries; None for an ordinary end."""
    if not isinstance(stop_reason, str):
        return None
    if stop_reason.startswith(_DROPPED):
        return RequestDropped(request_id, stop_reason.removeprefix(_DROPPED))
    if stop_reason.startswith(_REJECTED):
        return InvalidSlo("slo", request_id, stop_reason.removeprefix(_REJECTED))
    return None
