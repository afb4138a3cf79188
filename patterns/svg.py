"""A picture as SVG text: shapes, escaped text, and a frame that suits light and dark pages.

A picture has no scripts, no links and no fonts of its own. Text and lines have the colour of the
text around (`currentColor`); areas have colours that are legible on white and on black.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

COLOURS = ("#3b82c4", "#c98a1b", "#7a9e3f", "#9a6fd0", "#2a9d8f", "#b5651d", "#c45ab3", "#6b7a90")
"""For areas of different kinds; the kinds after the last one are drawn in GREY."""

GREY = "#8b949e"
RED = "#d1495b"
"""What is late, was cut off or failed."""

CHARACTER_PX = 6.6
"""Mean width of a character of the text; text is cut to what fits by it."""

_FRAME = (
    "<style>:root{color:#24292f;background:#ffffff}"
    "@media (prefers-color-scheme:dark){:root{color:#e6edf3;background:#0d1117}}</style>"
)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of `width` times `height` pixels.

    Attributes:
        title: what it shows, for those who cannot see it.
        shapes: SVG elements, the lowest first.
    """

    width: float
    height: float
    title: str
    shapes: tuple[str, ...]

    @property
    def svg(self) -> str:
        """A file of its own: it has a background, dark where the reader's system is dark."""
        return self._element(_FRAME, "") + "\n"

    @property
    def html(self) -> str:
        """An element of a page: without background, in the page's text colour."""
        return self._element("", ' style="max-width:100%;height:auto"')

    def _element(self, frame: str, style: str) -> str:
        size = f'width="{self.width:g}" height="{self.height:g}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}"'
            f' {size} role="img" font-family="sans-serif" font-size="12" fill="currentColor"'
            f"{style}>{frame}<title>{escaped(self.title)}</title>\n"
            + "\n".join(self.shapes)
            + "\n</svg>"
        )


def escaped(text: str) -> str:
    """Text of a user as text of the picture: no markup, no control characters, in one line."""
    kept = "".join(each if each.isprintable() else " " for each in text)
    return escape(" ".join(kept.split()))


def fitted(text: str, width: float) -> str:
    """The text, shortened with an ellipsis if it is wider than `width` pixels."""
    most = max(int(width / CHARACTER_PX), 1)
    return text if len(text) <= most else text[: most - 1] + "…"


def label(
    x: float, y: float, text: str, *, anchor: str = "start", style: str = "", tip: str = ""
) -> str:
    """Text with its baseline at y; `tip` is shown while the pointer is on it."""
    more = f"<title>{escaped(tip)}</title>" if tip else ""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {where}{_space(style)}>{escaped(text)}{more}</text>"


def box(x: float, y: float, width: float, height: float, *, style: str = "", tip: str = "") -> str:
    """A rectangle, at least one pixel wide."""
    where = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 1.0):.1f}" height="{height:.1f}"'
    return f"<rect {where}{_space(style)}><title>{escaped(tip)}</title></rect>"


def line(x1: float, y1: float, x2: float, y2: float, *, style: str = "") -> str:
    """A straight line, in the text's colour unless the style has another."""
    stroke = "" if "stroke=" in style else ' stroke="currentColor"'
    where = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f"<line {where}{stroke}{_space(style)}/>"


def curve(x1: float, y1: float, x2: float, y2: float, *, style: str = "") -> str:
    """A curve that leaves and arrives horizontally."""
    bend = (x1 + x2) / 2
    way = f"M{x1:.1f},{y1:.1f} C{bend:.1f},{y1:.1f} {bend:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
    return f'<path d="{way}" fill="none"{_space(style)}/>'


def _space(style: str) -> str:
    return f" {style}" if style else ""
