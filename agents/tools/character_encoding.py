"""Decodes the bytes of a document: by its byte order mark, as UTF-8, as declared, or as detected.

Evidence in the bytes is preferred to declarations: UTF-8 with a few invalid bytes stays UTF-8,
whatever a page declares.
"""

import codecs
import re
from typing import NamedTuple

import webencodings
from charset_normalizer import from_bytes
from justhtml import JustHTML

from agents.tools.errors import Unreadable

# The little-endian mark of UTF-32 begins with that of UTF-16, so it is tried first.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")
# ISO-2022-JP has ASCII bytes only, so it is also valid UTF-8; these sequences begin Japanese text.
_ISO_2022_JP = re.compile(rb"\x1b\$(?:[@AB]|\(D)")
_XML_DECLARATION = re.compile(rb"\s*<\?xml\s[^>]*?\bencoding\s*=\s*[\"']([\w.:-]+)")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';]+)", re.IGNORECASE)
# Declared by meta tags that were read as ASCII, so that they cannot be true.
_IMPOSSIBLE = frozenset({"utf-16le", "utf-16be", "x-user-defined", "replacement"})
_HIGH_RUN = re.compile(rb"[\x80-\xff]{3,}")
_HIGH = re.compile(rb"[\x80-\xff]+")
_LEGACY_ENCODINGS = (
    *("cp1250", "iso8859_2", "cp1251", "koi8_r", "cp866", "iso8859_5", "cp1253", "iso8859_7"),
    *("cp1255", "cp1256", "cp932", "euc_jp", "gb18030", "big5", "cp949"),
)
_DETECTION_BYTES = 100_000


class DecodedText(NamedTuple):
    """The text of a document.

    Attributes:
        text: with U+FFFD for invalid bytes.
        warning: which bytes were replaced, or which encoding was only detected; "" if neither.
    """

    text: str
    warning: str = ""


def decode(data: bytes, *, html: bool = False) -> DecodedText:
    """The text of a document.

    Args:
        data: the whole file.
        html: whether a <meta> tag or an XML declaration may name the encoding.
    Raises:
        Unreadable: NUL bytes, control characters, or bytes that are invalid in every encoding.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decode_marked(data, encoding)
    if b"\0" in data:
        raise Unreadable("it is a binary file (NUL bytes)")
    if _ISO_2022_JP.search(data) and (japanese := _with_replacements(data, "iso2022_jp_ext")):
        return japanese
    if decoded := _with_replacements(data, "utf-8"):
        return decoded
    if _CONTROLS.search(data):
        raise Unreadable("it is a binary file (not UTF-8, and with control characters)")
    declared = _declared_encoding(data) if html else None
    if declared and (decoded := _with_replacements(data, declared)):
        return decoded
    detected = _detected_encoding(data)
    if detected is None:
        raise Unreadable("its bytes are not valid text in any usual encoding")
    text = data.decode(detected, "replace")
    return DecodedText(text, f"no encoding is declared: read as {detected}")


def _decode_marked(data: bytes, encoding: str) -> DecodedText:
    decoded = _with_replacements(data, encoding)
    if decoded is None:
        raise Unreadable(f"its bytes are not valid {encoding} text")
    if "\0" in decoded.text:
        raise Unreadable("it is a binary file (NUL characters)")
    return decoded


def _with_replacements(data: bytes, encoding: str) -> DecodedText | None:
    """The text with U+FFFD for invalid bytes; None if most of what is not ASCII is invalid."""
    try:
        return DecodedText(data.decode(encoding))
    except UnicodeDecodeError:
        text = data.decode(encoding, "replace")
    num_invalid = text.count("\ufffd")
    num_valid = len(text) - num_invalid
    if not encoding.startswith(("utf-16", "utf-32")):  # ASCII is no evidence for the others
        num_valid -= len(text.encode("ascii", "ignore"))
    if num_invalid >= num_valid:
        return None
    label = "UTF-8" if encoding.startswith("utf-8") else encoding
    return DecodedText(
        text, f"bytes that are not valid {label} were replaced by U+FFFD: {num_invalid:,}"
    )


def _declared_encoding(data: bytes) -> str | None:
    """The codec of the first encoding that a page declares and that is one of the Web's."""
    for label in _declared_labels(data):
        encoding = webencodings.lookup(label)
        if encoding is not None and encoding.name not in _IMPOSSIBLE:
            codec: str = encoding.codec_info.name
            return codec
    return None


def _declared_labels(data: bytes) -> list[str]:
    xml = _XML_DECLARATION.match(data)
    labels = [xml[1].decode("ascii", "replace")] if xml else []
    for meta in JustHTML(data.decode("latin-1"), sanitize=False).query("meta"):
        attributes = meta.attrs or {}
        if "charset" in attributes:
            labels.append(attributes["charset"] or "")
        elif (attributes.get("http-equiv") or "").lower() == "content-type":
            labels += _CHARSET.findall(attributes.get("content") or "")
    return labels


def _detected_encoding(data: bytes) -> str | None:
    """The codec of text that is not UTF-8 and declares nothing; None if none is plausible.

    In the Latin alphabet single letters are not ASCII, which is too little evidence for a detector:
    the usual encoding is Windows-1252, a superset of printable Latin-1. In other scripts whole
    words are not ASCII.
    """
    num_high = sum(map(len, _HIGH.findall(data)))
    if 2 * sum(map(len, _HIGH_RUN.findall(data))) <= num_high:
        try:
            data.decode("cp1252")
        except UnicodeDecodeError:  # bytes that Windows-1252 does not define
            pass
        else:
            return "cp1252"
    best = from_bytes(data[:_DETECTION_BYTES], cp_isolation=list(_LEGACY_ENCODINGS)).best()
    return None if best is None else best.encoding
