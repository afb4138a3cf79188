"""Images of prompts: URLs, files and bytes."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest

from serving.errors import InvalidRequest
from serving.images import MAX_IMAGE_BYTES, Image

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 40


@pytest.mark.parametrize(
    "url",
    [
        "http://here/a.png",
        "https://here/a",
        "data:image/png;base64,AAAA",
        "DATA:image/gif;base64,A",
    ],
)
def test_a_url_is_kept(url: str) -> None:
    image = Image(url)
    assert image.url == url
    assert pickle.loads(pickle.dumps(image)) == image


@pytest.mark.parametrize(
    "url", ["", "a.png", "/etc/passwd", "file:///etc/passwd", "data:text/html,x", "ftp://here/a"]
)
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"for a file use Image\.from_file"):
        Image(url)


@pytest.mark.parametrize("url", [None, 3, b"http://here"])
def test_a_url_that_is_no_text_is_refused(url: object) -> None:
    with pytest.raises(InvalidRequest, match="its url is a text"):
        Image(url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "name", "media_type"),
    [
        (PNG, "picture", "image/png"),
        (PNG, "wrong.jpg", "image/png"),
        (b"\xff\xd8\xff\xe0abc", "a.bin", "image/jpeg"),
        (b"GIF89a...", "a.gif", "image/gif"),
        (b"RIFF1234WEBPVP8 ", "a", "image/webp"),
        (b"<svg/>", "a.svg", "image/svg+xml"),
    ],
)
def test_a_file_becomes_a_data_url_of_its_own_type(
    tmp_path: Path, data: bytes, name: str, media_type: str
) -> None:
    (tmp_path / name).write_bytes(data)
    for path in (tmp_path / name, str(tmp_path / name)):
        image = Image.from_file(path)
        assert image.url == f"data:{media_type};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize(("name", "data"), [("a.txt", b"text"), ("a", b"text"), ("empty", b"")])
def test_a_file_that_is_no_image_is_refused(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidRequest, match="no image that is known"):
        Image.from_file(tmp_path / name)


def test_an_empty_file_with_the_name_of_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(InvalidRequest, match="no bytes"):
        Image.from_file(tmp_path / "a.png")


def test_a_file_that_is_missing_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Image.from_file(tmp_path / "a.png")


def test_an_image_beyond_the_limit_is_refused_with_its_size(tmp_path: Path) -> None:
    data = PNG.ljust(MAX_IMAGE_BYTES, b"\0")
    assert Image.from_bytes(data).url.startswith("data:image/png;base64,")
    (tmp_path / "a.png").write_bytes(data + b"\0")
    for make in (
        lambda: Image.from_bytes(data + b"\0"),
        lambda: Image.from_file(tmp_path / "a.png"),
    ):
        with pytest.raises(InvalidRequest, match=r"has 20\.0 MiB, the limit is 20 MiB"):
            make()
    with pytest.raises(InvalidRequest, match="a data URL has"):
        Image("data:image/png;base64," + "A" * (MAX_IMAGE_BYTES * 4 // 3 + 200))


@pytest.mark.parametrize("media_type", ["text/plain", "", "png"])
def test_bytes_of_another_media_type_are_refused(media_type: str) -> None:
    with pytest.raises(InvalidRequest, match="media type"):
        Image.from_bytes(PNG, media_type)


def test_bytes_of_an_unknown_type_need_a_media_type() -> None:
    with pytest.raises(InvalidRequest, match="media_type='image/png'"):
        Image.from_bytes(b"abc")
    assert Image.from_bytes(b"abc", "image/avif").url.startswith("data:image/avif;base64,")


def test_the_repr_of_a_large_image_is_short() -> None:
    assert len(repr(Image.from_bytes(PNG * 1000))) < 120
    assert repr(Image("http://here/a.png")) == "Image(url='http://here/a.png')"
