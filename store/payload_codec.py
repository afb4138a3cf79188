"""A codec for users' data in a store: to encrypt it, or to remove parts of it.

The data are arguments, results, prompts and answers. Names of flows and steps, questions to people
and digests of arguments are not encoded.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from store.errors import PayloadEncoded, PayloadNotEncoded

JSON = "application/json"
TEXT = "text/plain"

_HEAD = b"\x00codec:"
"""How encoded data begins; then come the codec's name and a NUL. JSON never begins with a NUL."""


@runtime_checkable
class PayloadCodec(Protocol):
    """Encodes data before it is stored, and decodes it when it is read.

    The data of a resumed run must be what it was: a codec that removes parts may do so for prompts
    and answers (media type text/plain), but not for arguments and results (application/json).
    Equal data that is encoded in different ways is stored several times.

    Attributes:
        name: stored with the data, without NUL; data with another name is refused.
    """

    name: str

    def encode(self, data: bytes, media_type: str) -> bytes:
        """The data as it is stored; called in the event loop, so it must be fast."""
        ...

    def decode(self, data: bytes) -> bytes:
        """The inverse; its errors are raised to the reader."""
        ...


def encoded(codec: PayloadCodec | None, data: bytes, media_type: str) -> bytes:
    """The data as it is stored, with the codec's name if there is one; raises PayloadNotEncoded."""
    if codec is not None:
        try:
            data = codec.encode(data, media_type)
        except Exception as error:  # of any class: it is the user's code
            raise PayloadNotEncoded(codec.name, f"{type(error).__name__}: {error}") from error
        return _HEAD + codec.name.encode() + b"\x00" + data
    return _HEAD + b"\x00" + data if data.startswith(_HEAD) else data


def decoded(codec: PayloadCodec | None, stored: bytes) -> bytes:
    """The data that was encoded; data of a time without a codec as it is.

    Raises:
        PayloadEncoded: another codec encoded it, or there is none.
    """
    if not stored.startswith(_HEAD):
        return stored
    name, _, data = stored.removeprefix(_HEAD).partition(b"\x00")
    if not name:
        return data
    if codec is None or codec.name.encode() != name:
        raise PayloadEncoded(name.decode(errors="replace"), None if codec is None else codec.name)
    return codec.decode(data)
