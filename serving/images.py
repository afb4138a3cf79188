"""Images in the turns of a chat: by URL, or with their bytes in a data URL."""

from __future__ import annotations

import base64
import mimetypes
import os
from dataclasses import dataclass
from pathlib import Path

from serving.errors import InvalidRequest

MAX_IMAGE_BYTES = 20 << 20
"""Largest image whose bytes are sent: in base64, two of them fit a request to `orchestrate serve`,
which takes 64 MiB."""

_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"BM": "image/bmp",
}
_SCHEMES = ("http://", "https://", "data:image/")


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a turn of a chat, for models that read images.

    Attributes:
        url: of http or https, or a data URL (`data:image/png;base64,...`).
    Raises:
        InvalidRequest: the URL is of another kind, or a data URL is too long.
    """

    url: str

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise InvalidRequest("Image", f"its url is a text, not {self.url!r:.80}")
        if not self.url.lower().startswith(_SCHEMES):
            reason = f"{self.url!r:.80} is no URL of http or https, and no data URL of an image"
            raise InvalidRequest("Image", f"{reason}; for a file use Image.from_file(path)")
        if len(self.url) > MAX_IMAGE_BYTES * 4 // 3 + 100:
            raise _too_large("a data URL", len(self.url) * 3 // 4)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Image:
        """The image in a file: its bytes in a data URL.

        Raises:
            InvalidRequest: it is larger than MAX_IMAGE_BYTES, empty or no image.
            OSError: it cannot be read.
        """
        file = Path(path)
        size = file.stat().st_size
        if size > MAX_IMAGE_BYTES:
            raise _too_large(str(path), size)
        data = file.read_bytes()
        media_type = _media_type(data) or mimetypes.guess_type(file.name)[0] or ""
        if not media_type.startswith("image/"):
            raise InvalidRequest("Image", f"{path} is no image that is known here; give from_bytes")
        return cls.from_bytes(data, media_type)

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str | None = None) -> Image:
        """An image's bytes, in a data URL.

        Args:
            media_type: such as "image/png"; None: as its first bytes say.
        Raises:
            InvalidRequest: they are more than MAX_IMAGE_BYTES, or none, or of an unknown type.
        """
        if len(data) > MAX_IMAGE_BYTES:
            raise _too_large("an image", len(data))
        known = _media_type(data) if media_type is None else media_type
        if not data or known is None or not known.startswith("image/"):
            what = "no bytes" if not data else f"of the media type {known}"
            raise InvalidRequest(
                "Image", f"it is {what}: give an image, and media_type='image/png'"
            )
        return cls(f"data:{known};base64,{base64.b64encode(data).decode()}")

    def __repr__(self) -> str:
        """The URL, of a long data URL only its beginning."""
        url = self.url if len(self.url) <= 100 else f"{self.url[:40]}... ({len(self.url):,})"
        return f"Image(url={url!r})"


def _media_type(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), None)


def _too_large(what: str, size: int) -> InvalidRequest:
    limit = MAX_IMAGE_BYTES >> 20
    reason = f"{what} has {size / (1 << 20):.1f} MiB, the limit is {limit} MiB: make it smaller"
    return InvalidRequest("Image", reason)
