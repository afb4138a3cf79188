"""Decoding any bytes gives a pattern or raises a CodecError."""

import zlib
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from patterns import (
    CODEC_VERSION,
    CodecError,
    CorruptPattern,
    PatternGraph,
    UnknownVersion,
    WrongView,
    decode,
    decode_stages,
    encode,
    encode_stages,
)
from patterns.wire import Writer, seal
from tests.unit.patterns.pattern_strategies import SAMPLE, graphs, law

DOCUMENTS = {decode: encode(SAMPLE), decode_stages: encode_stages(SAMPLE.stages)}
both_views = pytest.mark.parametrize("read", DOCUMENTS, ids=lambda read: read.__name__)


def sealed(head: bytes, body: bytes) -> bytes:
    """Any bytes as a document with a valid checksum."""
    return head + body + zlib.crc32(head + body).to_bytes(4, "little")


@law
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    for read in (decode, decode_stages):
        with pytest.raises(CodecError):
            read(data)


@law
@given(st.sampled_from([0, 1, 2, 3, 4, 255]), st.binary(max_size=300))
@example(0, b"\xff" * 9)
@example(0, b"\x00\x00\xff\xff\xff\xff\xff\xff\xff\x7f")
def test_arbitrary_bytes_with_a_valid_checksum_are_a_pattern_or_refused(
    layout: int, body: bytes
) -> None:
    document = sealed(bytes((0xC9, CODEC_VERSION, layout)), body)
    for read in (decode, decode_stages):
        try:
            read(document)
        except CodecError:
            continue


@law
@given(graphs(), st.data())
def test_a_changed_body_with_a_valid_checksum_is_a_pattern_or_refused(
    graph: PatternGraph, data: st.DataObject
) -> None:
    """Tests bytes close to real documents, which random bytes rarely are."""
    body = bytearray(data.draw(st.sampled_from(_bodies(graph))))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    for view, read in (("nodes", decode), ("stages", decode_stages)):
        try:
            read(seal(view, body))
        except CodecError:
            continue


def _bodies(graph: PatternGraph) -> list[bytes]:
    bodies = []
    for document in (encode(graph), encode_stages(graph.stages)):
        body = document[3:-4]
        bodies.append(zlib.decompress(body, wbits=-15) if document[2] % 2 else body)
    return bodies


@both_views
def test_every_change_of_a_single_byte_is_detected(read: Callable[[bytes], object]) -> None:
    document = DOCUMENTS[read]
    for index in range(len(document)):
        for change in range(1, 256):
            damaged = bytearray(document)
            damaged[index] ^= change
            with pytest.raises(CodecError):
                read(bytes(damaged))


@both_views
def test_a_truncated_or_extended_document_is_detected(read: Callable[[bytes], object]) -> None:
    document = DOCUMENTS[read]
    for length in range(len(document)):
        with pytest.raises(CodecError):
            read(document[:length])
    with pytest.raises(CorruptPattern):
        read(document + b"\0")


@both_views
def test_the_error_for_another_version_names_both_versions(read: Callable[[bytes], object]) -> None:
    with pytest.raises(UnknownVersion, match=f"version 9; .* version {CODEC_VERSION}"):
        read(sealed(bytes((0xC9, 9, 0)), b"any body"))


@both_views
def test_a_document_of_the_other_view_is_refused(read: Callable[[bytes], object]) -> None:
    (other,) = (document for reader, document in DOCUMENTS.items() if reader is not read)
    with pytest.raises(WrongView, match="holds"):
        read(other)


def numbers(*values: int) -> bytes:
    writer = Writer()
    for value in values:
        writer.number(value)
    return bytes(writer.body)


TOOL_X = numbers(0, 1, 0, 1) + b"x"
"""Identities of a document: none of LLM calls, and one tool, named x."""

HUGE = {
    "nodes": TOOL_X + numbers(2**60),
    "identities": numbers(2**60),
    "a text": numbers(1, 0, 2**60),
    "nodes of a real count of bytes": TOOL_X + numbers(200_000) + bytes(700_000),
    "edges": TOOL_X
    + numbers(4000)
    + bytes(8000)
    + bytes(2000)
    + numbers(2, 2 * 2000, 1999)
    + bytes(1999),
    "a range of parents": TOOL_X + numbers(2, 0, 0, 0, 0, 2, 2, 2**60),
    "ranges of parents": TOOL_X + numbers(2, 0, 0, 0, 0, 0, 2**60),
    "an amount": TOOL_X + numbers(1, 0, 2**60, 0),
    "texts that share long prefixes": numbers(3000, 0, 60_000)
    + b"a" * 60_000
    + numbers(60_000, 1, ord("a")) * 2999,
}


@pytest.mark.parametrize("body", HUGE.values(), ids=HUGE.keys())
def test_a_document_with_too_large_counts_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptPattern):
        decode(seal("nodes", body))


@pytest.mark.parametrize(
    "body",
    [
        numbers(2**60),
        TOOL_X + numbers(2**60),
        TOOL_X + numbers(1, 1, 0, 2**60, 0),
        TOOL_X + numbers(1, 2**60),
        TOOL_X + numbers(1, 0),
    ],
    ids=["identities", "stages", "calls", "identities of a stage", "no call at all"],
)
def test_stages_with_too_large_counts_or_without_calls_are_refused(body: bytes) -> None:
    with pytest.raises(CorruptPattern):
        decode_stages(seal("stages", body))


def test_a_compression_bomb_is_refused() -> None:
    deflate = zlib.compressobj(level=9, wbits=-15)
    bomb = deflate.compress(bytes(64 << 20)) + deflate.flush()
    with pytest.raises(CorruptPattern, match="end"):
        decode(sealed(bytes((0xC9, CODEC_VERSION, 1)), bomb))
