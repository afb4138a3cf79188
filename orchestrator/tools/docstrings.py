"""What a docstring says of a function and its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECTION = re.compile(
    r"(?:Args|Arguments|Parameters|Attributes|Returns?|Yields?|Raises|Examples?|Notes?|See also):"
)
_PARAMETERS = re.compile(r"(?:Args|Arguments|Parameters):")
_PARAMETER = re.compile(r"\*{0,2}(\w+)(?: ?\([^)]*\))?: *(.*)")
_FIELD = re.compile(r":(?:param (?:\w+ )?(\w+)|\w+(?: \w+)*): *(.*)")


def described(docstring: str) -> tuple[str, Mapping[str, str]]:
    """The description of a function, and of its parameters by name.

    Parameters are those in a section "Args:", as in Google's style, or in fields `:param name:`, as
    in Sphinx's. The description is what comes before the first section or field.

    Args:
        docstring: as `inspect.getdoc` returns it.
    """
    summary: list[str] = []
    parameters: dict[str, list[str]] = {}
    lines: list[str] = summary  # to which the current line belongs
    is_in_parameters = False
    indent = 0  # of the parameters in their section
    for line in docstring.splitlines():
        text, width = line.strip(), len(line) - len(line.lstrip())
        if not width and _SECTION.fullmatch(text):
            is_in_parameters, indent, lines = bool(_PARAMETERS.fullmatch(text)), 0, []
        elif not width and (field := _FIELD.match(text)):
            is_in_parameters = False
            lines = parameters.setdefault(field[1], []) if field[1] else []
            lines.append(field[2])
        elif is_in_parameters and (width <= indent or not indent) and text:
            indent = indent or width
            named = _PARAMETER.match(text)
            lines = parameters.setdefault(named[1], []) if named else []
            lines.append(named[2] if named else text)
        else:
            lines.append(text)
    return "\n".join(summary).strip(), {
        name: " ".join(part for part in parts if part) for name, parts in parameters.items()
    }
