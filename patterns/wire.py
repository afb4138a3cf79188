"""The encoding of a pattern document: varints, texts, quantised amounts, header and checksum."""

import zlib
from collections.abc import Iterable

from patterns.errors import CorruptPattern, PatternTooLarge, UnknownVersion, WrongView

CODEC_VERSION = 1
"""Increased whenever the meaning of a document changes."""

_MAGIC = 0xC9
_VIEWS = ("nodes", "stages")
_HEADER_BYTES = 3
_CHECKSUM_BYTES = 4
_MAX_NUMBER_BYTES = 9
_MAX_SHIFT = 62
_MAX_INFLATED_BYTES = 1 << 24
_MAX_TEXT_BYTES = 1 << 22


def quantise(value: int, bits: int) -> int:
    """Round a whole number to a floating-point code; codes have the same order as the numbers.

    Exact below 2**(bits + 1); above, the relative error is at most 2**-(bits + 1). Powers of two
    are exact. Quantising a restored value gives the same code again.

    Args:
        value: 0 or more.
        bits: mantissa bits after the leading one.
    """
    shift = value.bit_length() - bits - 1
    if shift <= 0:
        return value
    mantissa = (value + (1 << (shift - 1))) >> shift
    return (shift << bits) + mantissa


def restore(code: int, bits: int) -> int:
    """The number that a code of `quantise` represents.

    Raises:
        CorruptPattern: the number is larger than any in a pattern.
    """
    if code < 2 << bits:
        return code
    shift = (code >> bits) - 1
    if shift > _MAX_SHIFT:
        raise CorruptPattern("an amount is out of range")
    return (code - (shift << bits)) << shift


class Writer:
    """Appends to the body of a document."""

    def __init__(self) -> None:
        self.body = bytearray()

    def number(self, value: int) -> None:
        """Write a whole number, 0 or more, as a varint: seven bits per byte, lowest first."""
        while value > 0x7F:
            self.body.append(0x80 | (value & 0x7F))
            value >>= 7
        self.body.append(value)

    def signed(self, value: int) -> None:
        """Write a whole number of either sign as a zigzag varint: short for small magnitudes."""
        self.number(2 * value if value >= 0 else -2 * value - 1)

    def texts(self, texts: Iterable[str]) -> None:
        """Write texts, each without the prefix that it shares with the previous one.

        Raises:
            PatternTooLarge: more than 4 MiB of text.
        """
        encoded = [text.encode() for text in texts]
        total = sum(map(len, encoded))
        if total > _MAX_TEXT_BYTES:
            raise PatternTooLarge("bytes of identities", total, _MAX_TEXT_BYTES)
        self.number(len(encoded))
        previous = b""
        for text in encoded:
            num_shared = _shared_length(previous, text)
            self.number(num_shared)
            self.number(len(text) - num_shared)
            self.body += text[num_shared:]
            previous = text


def _shared_length(left: bytes, right: bytes) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))


class Reader:
    """Reads a document's body; raises CorruptPattern for everything that is not valid."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0

    @property
    def num_left(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self._body) - self._position

    def take(self, num_bytes: int) -> bytes:
        """The next `num_bytes` bytes."""
        if num_bytes > self.num_left:
            raise CorruptPattern("it ends early")
        start = self._position
        self._position += num_bytes
        return self._body[start : self._position]

    def number(self) -> int:
        """Inverse of Writer.number."""
        value = 0
        for position in range(_MAX_NUMBER_BYTES):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                return value
        raise CorruptPattern("a number is too long")

    def count(self) -> int:
        """The number of elements that follow; each takes at least one byte."""
        value = self.number()
        if value > self.num_left:
            raise CorruptPattern("it ends early")
        return value

    def signed(self) -> int:
        """Inverse of Writer.signed."""
        value = self.number()
        return -(value + 1) // 2 if value & 1 else value // 2

    def texts(self) -> list[str]:
        """Inverse of Writer.texts."""
        texts: list[str] = []
        text = b""
        total = 0
        for _ in range(self.count()):
            num_shared = self.number()
            if num_shared > len(text):
                raise CorruptPattern("an identity shares more than the length of the previous one")
            text = text[:num_shared] + self.take(self.number())
            total += len(text)
            if total > _MAX_TEXT_BYTES:
                raise CorruptPattern("too much text")
            try:
                texts.append(text.decode())
            except UnicodeDecodeError as cause:
                raise CorruptPattern("an identity is not UTF-8") from cause
        return texts

    def end(self) -> None:
        """Check that the whole body was read."""
        if self.num_left:
            raise CorruptPattern("it continues after its end")


def seal(view: str, body: bytes | bytearray) -> bytes:
    """A document: header, body (deflated if that is shorter) and checksum.

    Header: magic, version, and 2 * view + (1 if deflated). Checksum: CRC-32 of all before it,
    little-endian, which detects every change of up to four adjacent bytes.
    """
    layout = 2 * _VIEWS.index(view)
    if len(body) <= _MAX_INFLATED_BYTES:
        deflate = zlib.compressobj(level=9, wbits=-zlib.MAX_WBITS)
        deflated = deflate.compress(body) + deflate.flush()
        if len(deflated) < len(body):
            layout, body = layout + 1, deflated
    sealed = bytes((_MAGIC, CODEC_VERSION, layout)) + body
    return sealed + zlib.crc32(sealed).to_bytes(_CHECKSUM_BYTES, "little")


def unseal(view: str, document: bytes) -> bytes:
    """The body of a document of this view; inverse of `seal`.

    Raises:
        CorruptPattern: damaged, cut short, or not a pattern document.
        UnknownVersion: written by another version of the program.
        WrongView: valid, but of the other view.
    """
    if len(document) < _HEADER_BYTES + _CHECKSUM_BYTES or document[0] != _MAGIC:
        raise CorruptPattern("it does not begin with a header")
    if document[1] != CODEC_VERSION:
        raise UnknownVersion(document[1], CODEC_VERSION)
    sealed, checksum = document[:-_CHECKSUM_BYTES], document[-_CHECKSUM_BYTES:]
    if zlib.crc32(sealed) != int.from_bytes(checksum, "little"):
        raise CorruptPattern("its checksum does not match")
    found, is_deflated = divmod(sealed[2], 2)
    if found >= len(_VIEWS):
        raise CorruptPattern("its layout is unknown")
    if _VIEWS[found] != view:
        raise WrongView(_VIEWS[found], view)
    body = sealed[_HEADER_BYTES:]
    return _inflate(body) if is_deflated else body


def _inflate(body: bytes) -> bytes:
    inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        inflated = inflate.decompress(body, _MAX_INFLATED_BYTES + 1)
    except zlib.error as cause:
        raise CorruptPattern("its body cannot be inflated") from cause
    if not inflate.eof or inflate.unused_data or len(inflated) > _MAX_INFLATED_BYTES:
        raise CorruptPattern("its compressed body does not end with the document, or is too large")
    return inflated
