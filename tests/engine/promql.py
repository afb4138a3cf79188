"""Reads names and labels out of PromQL: as much of it as our dashboard uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.engine.metrics_pages import Page, Series

TARGET_LABELS = frozenset({"instance", "job"})
"""Labels that Prometheus adds to every series of a page."""

_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"(?<![\w.:])([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?(?!\s*[\w(:])")
_MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_KEYWORDS = frozenset({"and", "bool", "offset", "or", "unless"})


class Matcher(NamedTuple):
    """A condition on a label."""

    label: str
    operator: str
    value: str

    def matches(self, value: str) -> bool:
        """Whether a label may have this value; a series without it has ""."""
        is_pattern = self.operator in ("=~", "!~")
        found = re.fullmatch(self.value, value) is not None if is_pattern else self.value == value
        return found != self.operator.startswith("!")


class Selector(NamedTuple):
    """A name of a metric, and conditions on its labels."""

    metric: str
    matchers: tuple[Matcher, ...]

    def found_in(self, page: Page) -> list[Series]:
        """The series that it selects."""
        return [series for series in page if series.name == self.metric and self._fits(series)]

    def _fits(self, series: Series) -> bool:
        labels = dict(series.labels)
        return all(
            each.label in TARGET_LABELS or each.matches(labels.get(each.label, ""))
            for each in self.matchers
        )


class Query(NamedTuple):
    """What a query names.

    Attributes:
        grouping: the labels by which it groups.
    """

    selectors: tuple[Selector, ...]
    grouping: frozenset[str]


def parse(expression: str) -> Query:
    """What an expression names.

    Raises:
        ValueError: its brackets do not match, or a condition on labels cannot be read.
    """
    for opening, closing in ("()", "[]", "{}"):
        if expression.count(opening) != expression.count(closing):
            raise ValueError(f"unbalanced {opening}{closing}: {expression}")
    grouping = {
        label.strip()
        for labels in _GROUPING.findall(expression)
        for label in labels.split(",")
        if label.strip()
    }
    rest = _GROUPING.sub(" ", re.sub(r"\[[^\]]*\]", " ", expression))
    selectors = tuple(
        Selector(name, tuple(_matchers(conditions.strip("{}"))))
        for name, conditions in _SELECTOR.findall(rest)
        if name not in _KEYWORDS
    )
    return Query(selectors, frozenset(grouping))


def missing(expression: str, page: Page) -> list[str]:
    """What an expression names and a page does not have: selectors, and labels to group by."""
    query = parse(expression)
    assert query.selectors, f"it asks for no metric: {expression}"
    found = {selector: selector.found_in(page) for selector in query.selectors}
    labels = TARGET_LABELS | {
        name for series in found.values() for each in series for name, _ in each.labels
    }
    without_data = [str(selector) for selector, series in found.items() if not series]
    return without_data + sorted(query.grouping - labels)


def _matchers(conditions: str) -> Iterator[Matcher]:
    place = 0
    while place < len(conditions):
        match = _MATCHER.match(conditions, place)
        if match is None:
            raise ValueError(f"not a condition on a label: {conditions[place:]}")
        yield Matcher(*match.groups())
        place = match.end()
