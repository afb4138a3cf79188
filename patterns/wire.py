"""The bytes of a pattern document: whole numbers, texts, quantised amounts, and the seal."""

import zlib
from collections.abc import Iterable

from patterns.errors import CorruptPattern, PatternTooLarge, UnknownVersion, WrongView

CODEC_VERSION = 1
"""Raised whenever a document of the same pattern would mean something else."""

_MAGIC = 0xC9
_VIEWS = ("nodes", "stages")
_HEADER_BYTES = 3
_CHECKSUM_BYTES = 4
_MAX_NUMBER_BYTES = 9
_MAX_SHIFT = 62
_MAX_INFLATED_BYTES = 1 << 24
_MAX_TEXT_BYTES = 1 << 22


def quantise(value: int, bits: int) -> int:
    """Round a whole number to a floating form, as a code that sorts like the numbers.

    Exact below 2**(bits + 1); above, the relative error is at most 2**-(bits + 1). Powers of two
    are exact, and a restored value is its own nearest, so that encoding again changes nothing.

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
    """The number that `quantise` stands for by this code.

    Raises:
        CorruptPattern: the code stands for a number that no pattern has.
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
        """A whole number, 0 or more: seven bits a byte, lowest first."""
        while value > 0x7F:
            self.body.append(0x80 | (value & 0x7F))
            value >>= 7
        self.body.append(value)

    def signed(self, value: int) -> None:
        """A whole number of either sign; the small ones stay short (zigzag)."""
        self.number(2 * value if value >= 0 else -2 * value - 1)

    def texts(self, texts: Iterable[str]) -> None:
        """Texts, each as what it adds to the beginning it shares with the former one.

        Raises:
            PatternTooLarge: more than 4 MiB of text.
        """
        encoded = [text.encode() for text in texts]
        total = sum(map(len, encoded))
        if total > _MAX_TEXT_BYTES:
            raise PatternTooLarge("bytes of identities", total, _MAX_TEXT_BYTES)
        self.number(len(encoded))
        former = b""
        for text in encoded:
            shared = _num_shared(former, text)
            self.number(shared)
            self.number(len(text) - shared)
            self.body += text[shared:]
            former = text


def _num_shared(left: bytes, right: bytes) -> int:
    """Length of the beginning that both have."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


class Reader:
    """Takes a document's body apart; whatever does not fit is a CorruptPattern."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = 0

    @property
    def num_left(self) -> int:
        """Bytes not read yet."""
        return len(self._body) - self._position

    def take(self, num_bytes: int) -> bytes:
        """The next bytes, as many as asked for."""
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
        """A number of things of at least one byte each, all of them still to come."""
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
        former = b""
        total = 0
        for _ in range(self.count()):
            shared = self.number()
            if shared > len(former):
                raise CorruptPattern("an identity has no beginning")
            former = former[:shared] + self.take(self.number())
            total += len(former)
            if total > _MAX_TEXT_BYTES:
                raise CorruptPattern("too much text")
            try:
                texts.append(former.decode())
            except UnicodeDecodeError as cause:
                raise CorruptPattern("an identity is no text") from cause
        return texts

    def end(self) -> None:
        """Nothing may be left."""
        if self.num_left:
            raise CorruptPattern("it goes on after its end")


def seal(view: str, body: bytes | bytearray) -> bytes:
    """Header, body (deflated where that is shorter) and checksum.

    Header: magic, version, and 2 * view + (1 if deflated). Checksum: CRC-32 of all before it,
    little-endian, so every change of up to four adjacent bytes is noticed.
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
        CorruptPattern: damaged, cut short, or never one of ours.
        UnknownVersion: written by another version of the program.
        WrongView: sound, but of the other view.
    """
    if len(document) < _HEADER_BYTES + _CHECKSUM_BYTES or document[0] != _MAGIC:
        raise CorruptPattern("it does not begin like one")
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
        raise CorruptPattern("its body does not end where it should")
    return inflated
