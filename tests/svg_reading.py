"""Reads pictures in tests: whether they are harmless, and what they say."""

from __future__ import annotations

from xml.etree import ElementTree

NAMESPACE = "{http://www.w3.org/2000/svg}"
ALLOWED = {
    "svg": {"viewBox", "width", "height", "role", "font-family", "font-size", "fill", "style"},
    "style": set[str](),
    "title": set[str](),
    "text": {"x", "y", "text-anchor", "font-size", "font-weight", "fill", "fill-opacity"},
    "rect": {
        *("x", "y", "width", "height", "rx", "fill", "fill-opacity"),
        *("stroke", "stroke-width", "stroke-opacity", "stroke-dasharray"),
    },
    "line": {
        *("x1", "y1", "x2", "y2", "stroke", "stroke-width"),
        *("stroke-opacity", "stroke-dasharray"),
    },
    "path": {"d", "fill", "stroke", "stroke-width", "stroke-opacity"},
}
"""Elements and their attributes: none executes anything, or loads anything."""


def elements(svg: str, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(NAMESPACE + name))


def texts(svg: str) -> list[str]:
    """What is written in the picture."""
    return [each.text or "" for each in elements(svg, "text")]


def assert_harmless(svg: str) -> None:
    for each in ElementTree.fromstring(svg).iter():
        name = each.tag.removeprefix(NAMESPACE)
        assert name in ALLOWED, name
        assert set(each.keys()) <= ALLOWED[name], (name, each.keys())
        assert "url(" not in "".join(each.attrib.values())
        if name == "style":
            assert "url" not in (each.text or "")
            assert "@import" not in (each.text or "")
