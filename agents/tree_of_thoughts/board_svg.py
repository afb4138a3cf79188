"""A board of letters, such as a crossword's, as an SVG picture."""

from __future__ import annotations

from collections.abc import Sequence

from patterns.svg import escaped

CELL, MARGIN = 40, 8
"""Side of a cell, and margin; in pixels."""


def board_svg(rows: Sequence[str]) -> str:
    """The picture of a board.

    Args:
        rows: equally long; "." is a cell without a letter.
    """
    width, height = (MARGIN * 2 + CELL * count for count in (len(rows[0]), len(rows)))
    cells = [
        _cell(column, row, rows[row][column])
        for row in range(len(rows))
        for column in range(len(rows[0]))
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" font-family="sans-serif" font-size="20">\n'
        f"<title>{escaped(' '.join(map(capitals, rows)))}</title>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        + "\n".join(cells)
        + "\n</svg>\n"
    )


def capitals(text: str) -> str:
    """A text in capital letters; a letter whose capital is not one letter, such as ß, stays."""
    return "".join(upper if len(upper := letter.upper()) == 1 else letter for letter in text)


def _cell(column: int, row: int, letter: str) -> str:
    x, y = MARGIN + column * CELL, MARGIN + row * CELL
    middle, base = x + CELL // 2, y + CELL // 2 + 7
    text = "" if letter == "." else escaped(capitals(letter))
    fill = "#ffffff" if text else "#ececec"
    return (
        f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="#404040"/>'
        f'<text x="{middle}" y="{base}" text-anchor="middle" fill="#202020">{text}</text>'
    )
