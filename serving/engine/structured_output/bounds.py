"""Bounds on a schema, regex or grammar, which are checked before anything expands it.

A compiler unrolls counts: an array of 100 million items takes gigabytes from a schema of 70 bytes.
The bounds refuse that in milliseconds. What they cannot see, a trial in a process with limits does
(`trial`). The figures are of llguidance 1.7 on one core.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MAX_BYTES = 128 * 1024
"""Size of a specification in UTF-8: it is read in 2 ms. OpenAI allows 120,000 characters."""

MAX_VALUES = 10_000
"""JSON values in a schema, those of enums included; or choices in a list.

10,000 choices compile in 80 ms and take 30 MB; 100,000 exceed llguidance's own limits.
"""

MAX_DEPTH = 80
"""Objects and arrays inside each other: vLLM allows 64, and 16 more around a schema in a tag."""

MAX_ITEMS = 10_000
"""minItems, maxItems and the like: the grammar has symbols for each item; 40 ms and 20 MB."""

MAX_REQUIRED_ITEMS = 100_000
"""Product of the minItems of arrays inside each other: more would fit in no model's context."""

MAX_CHARACTERS = 1_000_000
"""minLength and maxLength: llguidance does not unroll them, but no context fits more."""

MAX_REPETITIONS = 1_000_000
"""Counts {n,m} in a regex or grammar, multiplied where they are inside each other."""

_LIMITS = dict.fromkeys(
    (
        *("minItems", "maxItems", "minContains", "maxContains"),
        *("minProperties", "maxProperties"),
    ),
    MAX_ITEMS,
) | dict.fromkeys(("minLength", "maxLength"), MAX_CHARACTERS)

_DATA = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords whose values are data: a name in there is no keyword."""

_TOKEN = re.compile(
    r"""\\.                              # an escaped character
    | "(?:\\.|[^"\\\n])*"                # a literal of a grammar
    | \[(?:\\.|[^\]\\])*\]               # a class of characters
    | (?P<open>\()
    | (?P<close>\))
    | \{\s*(?P<least>\d*)\s*,?\s*(?P<most>\d*)\s*\}
    | ~\s*(?P<tilde>\d+)
    | [^\s?*+]                           # anything else that a count may follow
    """,
    re.VERBOSE | re.DOTALL,
)


def json_fault(document: str | Mapping[str, Any]) -> str | None:
    """What exceeds a bound in a JSON schema or a structural tag; None if nothing does.

    Text that is not JSON is left for the engine to reject.
    """
    tree: Any = document
    if isinstance(document, str):
        fault = _size_fault([document])
        if fault is not None:
            return fault
        try:
            tree = json.loads(document)
        except RecursionError:
            return _too_deep()
        except ValueError:
            return None
    return _tree_fault(tree)


def choices_fault(choices: Sequence[str]) -> str | None:
    """What exceeds a bound in a list of choices; None if nothing does."""
    if len(choices) > MAX_VALUES:
        return f"it has {len(choices)} choices; the limit is {MAX_VALUES:,}"
    return _size_fault(choices)


def text_fault(text: str) -> str | None:
    """What exceeds a bound in a regex, or in the text of a grammar; None if nothing does."""
    fault = _size_fault([text])
    if fault is None and (most := largest_repetition(text)) > MAX_REPETITIONS:
        fault = f"it repeats a part {most:,.0f} times; the limit is {MAX_REPETITIONS:,}"
    return fault


def largest_repetition(text: str) -> float:
    """The most times that a regex or grammar repeats a part of it, by counts {n,m} or ~n.

    Counts of groups that are inside each other are multiplied; * and + count as 1.
    """
    largest = last = 1.0  # last: of what stands before the position, which a count repeats
    within = [1.0]  # for each open group, the largest product inside it
    for match in _TOKEN.finditer(text):
        if match["open"]:
            within.append(1.0)
            last = 1.0
        elif match["close"]:
            last = within.pop() if len(within) > 1 else 1.0
        elif counts := [float(text) for text in match.group("least", "most", "tilde") if text]:
            last *= max(*counts, 1.0)
        else:
            last = 1.0
        within[-1] = max(within[-1], last)
        largest = max(largest, last)
    return largest


def _tree_fault(tree: Any) -> str | None:
    texts: list[str] = []
    for num_values, (value, depth, required_items, is_data) in enumerate(_values(tree), 1):
        if num_values > MAX_VALUES:
            return f"it has more than {MAX_VALUES:,} values, those of enums included"
        if depth > MAX_DEPTH:
            return _too_deep()
        if required_items > MAX_REQUIRED_ITEMS:
            return f"its arrays must have more than {MAX_REQUIRED_ITEMS:,} items in all"
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, Mapping):
            texts.extend(map(str, value))
            fault = None if is_data else _keyword_fault(value)
            if fault is not None:
                return fault
    return _size_fault(texts)


def _values(tree: Any) -> Iterator[tuple[Any, int, float, bool]]:
    """Every value in a JSON document.

    Yields: the value, its depth, how often an answer must have it, and whether it is data.
    """
    waiting: list[tuple[Any, int, float, bool]] = [(tree, 1, 1.0, False)]
    while waiting:
        value, depth, required_items, is_data = waiting.pop()
        yield value, depth, required_items, is_data
        if isinstance(value, Mapping):
            least = max(_number(value.get("minItems")) or 0.0, 1.0)
            for key, child in value.items():
                count = required_items * least if key == "items" else required_items
                waiting.append((child, depth + 1, count, is_data or key in _DATA))
        elif isinstance(value, list | tuple):
            waiting.extend((child, depth + 1, required_items, is_data) for child in value)


def _keyword_fault(schema: Mapping[str, Any]) -> str | None:
    for name, limit in _LIMITS.items():
        count = _number(schema.get(name))
        if count is not None and not count <= limit:
            return f"{name} is {count:,.0f}; the limit is {limit:,}"
    names = schema.get("patternProperties")
    patterns = [schema.get("pattern"), *(names if isinstance(names, Mapping) else ())]
    faults = (text_fault(pattern) for pattern in patterns if isinstance(pattern, str))
    return next((f"a pattern in it: {fault}" for fault in faults if fault is not None), None)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _size_fault(texts: Sequence[str]) -> str | None:
    num_bytes = sum(len(str(text).encode(errors="surrogatepass")) for text in texts)
    return (
        f"it has {num_bytes:,} bytes; the limit is {MAX_BYTES:,}" if num_bytes > MAX_BYTES else None
    )


def _too_deep() -> str:
    return f"its objects and arrays are nested more than {MAX_DEPTH} deep"
