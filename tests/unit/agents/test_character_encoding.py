"""Character encodings: byte order marks, damaged UTF-8, declarations and detection."""

import pytest

from agents.tools.character_encoding import decode
from agents.tools.errors import Unreadable
from agents.tools.readers import read_document

GERMAN = "Die Prüfung der Schlüssel ist täglich möglich."
JAPANESE = "締め切りは毎月更新されます。鍵の交換は安全のために必要です。"
KOREAN = "키는 보안 정책에 따라 매월 교체됩니다."
GREEK = "Τα κλειδιά αλλάζουν κάθε μήνα, επειδή το απαιτεί η πολιτική."  # noqa: RUF001
RUSSIAN = "Ключи меняются каждый месяц, потому что этого требует политика."


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("naïve".encode(), "naïve"),
        ("naïve".encode("utf-8-sig"), "naïve"),
        ("naïve".encode("utf-16"), "naïve"),
        ("naïve".encode("utf-16-be"), None),
        (b"\xfe\xff" + "naïve".encode("utf-16-be"), "naïve"),
        (b"\xff\xfe\0\0" + "naïve".encode("utf-32-le"), "naïve"),
        ("naïve".encode("latin-1"), "naïve"),
        ("“naïve”".encode("cp1252"), "“naïve”"),
        (b"caf\xe9\x01", None),
        (b"abc\0def", None),
        (b"\xff\xfea\0\0\0", None),
        (b"\xff\xfea", None),
        (bytes(range(0x80, 0x100)) * 3, None),
    ],
)
def test_a_file_is_decoded_or_refused(data: bytes, text: str | None) -> None:
    if text is None:
        with pytest.raises(Unreadable, match=r"binary|not valid"):
            decode(data)
    else:
        assert decode(data).text == text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_stray_byte_is_replaced_with_a_warning(encoding: str) -> None:
    stray = b"\xff" if encoding.startswith("utf-8") else b"\x00\xd8"
    text, warning = decode(GERMAN.encode(encoding) + stray + " Ende".encode(encoding)[-10:])
    assert text.startswith(f"{GERMAN}\ufffd")
    assert warning.endswith("U+FFFD: 1")
    assert decode(GERMAN.encode(encoding)) == (GERMAN, "")


def test_the_warning_of_an_encoding_is_part_of_the_reading() -> None:
    reading = read_document(GERMAN.encode() + b"\xff", "a.md")
    assert reading.passages[0].text == f"{GERMAN}\ufffd"
    assert "UTF-8" in reading.warning


@pytest.mark.parametrize(
    ("head", "encoding", "text"),
    [
        ('<meta charset="shift_jis">', "cp932", JAPANESE),
        ("<meta charset=ks_c_5601-1987>", "cp949", KOREAN),
        ("<meta charset=iso-2022-jp>", "iso2022_jp", JAPANESE),
        ("<?xml version='1.0' encoding='koi8-r'?>", "koi8_r", "Ключ"),
        ("<meta content='text/html; charset=windows-1251' http-equiv=content-type>", "cp1251", "Я"),
        (f"<!-- {'x' * 9000} <meta charset=koi8-r> --><meta charset=cp1251>", "cp1251", "Ключ"),
        ("<meta name=a content='charset=koi8-r'><meta charset=iso-8859-2>", "iso8859_2", "Zażółć"),
        ("<meta charset=rot13>", "cp1252", "café"),
        ("<meta charset=utf-16>", "cp1252", "café"),
        ("<meta charset=koi8-r>", "utf-8", GERMAN),  # saved anew, with its old declaration
    ],
)
def test_a_page_is_decoded_as_it_declares(head: str, encoding: str, text: str) -> None:
    page = f"<html><head>{head}</head><p>{text}"
    assert decode(page.encode(encoding), html=True).text == page


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", GERMAN),
        ("cp1252", "“naïve” «Ça»"),
        *((encoding, RUSSIAN) for encoding in ("cp1251", "koi8_r", "cp866", "iso8859_5")),
        ("cp1253", GREEK),
        ("cp1255", "המפתחות מוחלפים מדי חודש כי מדיניות האבטחה דורשת זאת"),
        *((encoding, JAPANESE) for encoding in ("cp932", "euc_jp")),
        ("gb18030", "密钥每月更换一次,因为安全政策要求这样做。"),
        ("big5", "金鑰每月更換一次,因為安全政策要求這樣做。"),
        ("cp949", KOREAN),
    ],
)
def test_an_undeclared_encoding_is_detected_with_a_warning(encoding: str, text: str) -> None:
    decoded = decode(text.encode(encoding))
    assert decoded.text == text
    assert "no encoding is declared" in decoded.warning


def test_undeclared_iso_2022_jp_is_not_taken_for_ascii() -> None:
    assert decode(JAPANESE.encode("iso2022_jp")) == (JAPANESE, "")
    assert decode(b"\x1b[31mred\x1b(B") == ("\x1b[31mred\x1b(B", "")
