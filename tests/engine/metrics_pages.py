"""Pages of metrics as Prometheus reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families


class Series(NamedTuple):
    """A time series: its name, and its labels as sorted pairs."""

    name: str
    labels: tuple[tuple[str, str], ...]


class Page(dict[Series, float]):
    """The values of all series of a page."""

    def by(self, name: str, *labels: str, **wanted: str) -> Counter[tuple[str, ...]]:
        """Values of a label each, or of several -> the sum of the series that have them.

        Args:
            wanted: further labels, with the value that a series must have.
        """
        sums: Counter[tuple[str, ...]] = Counter()
        for series, value in self.items():
            own = dict(series.labels)
            if series.name == name and wanted.items() <= own.items():
                sums[tuple(own[label] for label in labels)] += value  # type: ignore[assignment]
        return sums

    def since(self, before: Page) -> Page:
        """What has been added to each series."""
        return Page({series: value - before.get(series, 0.0) for series, value in self.items()})


def read_page(url: str) -> Page:
    """The page of a server."""
    answer = httpx.get(f"{url}/metrics", trust_env=False, timeout=60).raise_for_status()
    return Page(
        {
            Series(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
    )


def sum_of(pages: Iterable[Page]) -> Page:
    """The sum of the pages of several servers."""
    total = Page()
    for page in pages:
        for series, value in page.items():
            total[series] = total.get(series, 0.0) + value
    return total
