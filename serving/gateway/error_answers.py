"""The gateway's own errors, in the forms of OpenAI's API that the replicas use."""

from __future__ import annotations

import json

FAILED_STATUS = 502
"""HTTP status, and code of error events, if the replica failed."""

NO_REPLICA_STATUS = 503
"""HTTP status if there is no replica that could be asked."""


def error_body(status: int, message: str, *, kind: str, param: str | None = None) -> bytes:
    """The body of an error response."""
    return _error(status, message, kind=kind, param=param).encode()


def unknown_model(model: str) -> bytes:
    """The body of the response for a model that no replica serves; the status is 404."""
    message = f"The model `{model}` does not exist."
    return error_body(404, message, kind="NotFoundError", param="model")


def error_event(path: str, message: str, *, num_events: int) -> bytes:
    """The end of a stream whose replica failed.

    `/v1/responses` has an error event of its own; other streams end with an error object.

    Args:
        num_events: number of events that the client has.
    """
    if path != "/v1/responses":
        error = _error(FAILED_STATUS, message, kind="replica_failed", param=None)
        return f"data: {error}\n\ndata: [DONE]\n\n".encode()
    event = {
        "type": "error",
        "code": str(FAILED_STATUS),
        "message": message,
        "param": None,
        "sequence_number": num_events,
    }
    return f"event: error\ndata: {json.dumps(event)}\n\n".encode()


def _error(status: int, message: str, *, kind: str, param: str | None) -> str:
    error = {"message": message, "type": kind, "param": param, "code": status}
    return json.dumps({"error": error})
