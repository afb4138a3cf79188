"""Fit applications from the command line, one after the other; and what came of it, in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from cli.errors import FitInterrupted, FitUnderWay
from cli.reading.learned import check_known, library_sizes
from cli.render.describe import counted
from cli.render.kernels import kernel_document, kernel_in_words
from cli.terminal.glyphs import ASCII, UNICODE
from cli.terminal.progress import Activity
from cli.terminal.sanitize import one_line
from cli.terminal.signals import run_until_interrupted
from cli.terminal.warnings import log_as_warnings
from orchestrator.durations import shown
from orchestrator.learning.background_fit import fit_alone
from orchestrator.learning.fitting import BUDGET_BYTES, FitReport
from serving.analyzer.fitted import MIN_CALLS


@dataclass(frozen=True, slots=True)
class Fitted:
    """What came of one application's fit.

    Attributes:
        num_before: patterns of its library before.
    """

    report: FitReport
    num_before: int
    took_s: float

    @property
    def num_kept(self) -> int:
        """Patterns that the store keeps, in the library or not, learned from or not."""
        return self.report.num_runs + self.report.num_unreadable


def fit_all(
    url: str,
    wanted: Sequence[str],
    *,
    budget_bytes: int | None,
    by_silhouette: bool,
    on_fitted: Callable[[Fitted], None],
    verbose: bool = False,
) -> list[str]:
    """Fit applications, telling how far it is; returns those that somebody else is fitting.

    Args:
        wanted: all that have patterns where none is named.
        on_fitted: told what came of each, as soon as it is there.
    Raises:
        BadInput: an application is not known; then none is fitted.
        FitInterrupted: by a signal; what it was at then keeps its former library.
    """
    begun: list[str] = []

    async def work() -> list[str]:
        sizes = await library_sizes(url)
        check_known(wanted, sizes)
        left_out = []
        async with log_as_warnings():
            for application in dict.fromkeys(wanted or sizes):
                begun.append(application)
                began_s = time.monotonic()
                with Activity(f"fitting {application}", verbose=verbose) as activity:
                    report = await fit_alone(
                        url,
                        application,
                        budget_bytes=BUDGET_BYTES if budget_bytes is None else budget_bytes,
                        by_silhouette=by_silhouette,
                        progress=activity.update,
                    )
                if report is None:
                    left_out.append(application)
                else:
                    took_s = time.monotonic() - began_s
                    on_fitted(Fitted(report, sizes[application], took_s))
        return left_out

    def interrupted(number: int) -> FitInterrupted:
        return FitInterrupted(number, begun[-1] if begun else None)

    return run_until_interrupted(work(), interrupted=interrupted)


def check_none_left_out(left_out: Sequence[str]) -> None:
    """Raise FitUnderWay where somebody else was fitting some of the applications."""
    if left_out:
        raise FitUnderWay(left_out)


def outcome(fitted: Fitted, *, ascii_only: bool = False) -> list[Text]:
    """What came of a fit, in words."""
    report = fitted.report
    dot = f" {(ASCII if ascii_only else UNICODE).dot} "
    library = (
        f"{counted(fitted.num_kept, 'pattern')} kept, {report.num_patterns:,} in the library "
        f"(before: {fitted.num_before:,}), {report.library_bytes:,} bytes"
    )
    if report.num_evicted:
        library += f"; {counted(report.num_evicted, 'pattern')} forgotten for want of use"
    if report.length_error is not None:
        lengths = f"not saved: {report.length_error}"
    elif report.has_length_model:
        lengths = f"a forest on {counted(report.num_calls, 'call')}"
    else:
        lengths = (
            f"each step's last answers: {counted(report.num_calls, 'call')}, and a forest "
            f"takes {MIN_CALLS}"
        )
    title = Text.assemble(
        (one_line(report.application), "bold"), f"{dot}fitted in {shown(fitted.took_s)}"
    )
    facts = {
        "library": library,
        "kernel": kernel_in_words(report.kernel, is_fitted=True),
        "lengths": lengths,
    }
    if report.num_unreadable:
        facts["unread"] = (
            f"{counted(report.num_unreadable, 'pattern')} that this version cannot read: kept, and "
            "not learned from"
        )
    return [title, *(Text.assemble((f"  {name:8} ", "dim"), told) for name, told in facts.items())]


def fitted_document(fitted: Fitted) -> dict[str, object]:
    """The same, JSON-safe."""
    report = fitted.report
    return {
        "application": report.application,
        "patterns_kept": fitted.num_kept,
        "patterns_unreadable": report.num_unreadable,
        "patterns_forgotten": report.num_evicted,
        "patterns_in_library_before": fitted.num_before,
        "patterns_in_library": report.num_patterns,
        "library_bytes": report.library_bytes,
        "kernel": kernel_document(report.kernel),
        "llm_calls": report.num_calls,
        "has_length_model": report.has_length_model,
        "length_error": report.length_error,
        "seconds": fitted.took_s,
    }
