"""Text that others wrote, as a terminal may have it: what a store holds is shown, never obeyed."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_DIRECTIONS = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SEPARATORS = [0x2028, 0x2029]  # of lines and paragraphs
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), *_SEPARATORS, *_DIRECTIONS]
_LAYOUT = "\n\t"
_LEFT_OUT = {code: None for code in _CONTROLS if chr(code) not in _LAYOUT}


def printable(text: str) -> str:
    """Text without control characters, escape sequences' first of all, but for its layout."""
    return text if text.isprintable() else text.translate(_LEFT_OUT)


def one_line(text: str) -> str:
    """The same in one line: a name or a message that has several could pass for other lines."""
    return " ".join(printable(text).split())


class PrintableConsole(Console):
    """A console that controls its terminal by itself, whatever the text says."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object. Control characters take no cell: leaving them out moves nothing."""
        for segment in super().render(renderable, options):
            is_safe = segment.control or segment.text.isprintable()
            yield segment if is_safe else segment._replace(text=printable(segment.text))
