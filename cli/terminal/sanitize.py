"""A console that recorded text cannot control."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from store.printable_text import printable


class PrintableConsole(Console):
    """A console that prints no control characters of the text, only its own."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object. Control characters have no width, so removing them keeps the layout."""
        for segment in super().render(renderable, options):
            is_safe = segment.control or segment.text.isprintable()
            yield segment if is_safe else segment._replace(text=printable(segment.text))
