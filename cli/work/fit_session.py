"""Fits applications one after the other, and describes the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from cli.errors import FitInProgress, FitInterrupted
from cli.reading.learned import check_known, library_sizes
from cli.render.kernels import describe_kernel, kernel_document
from cli.terminal.progress import Activity
from cli.terminal.signals import run_until_interrupted
from cli.terminal.warnings import log_as_warnings
from orchestrator.display.glyphs import ASCII, UNICODE
from orchestrator.display.run_text import counted
from orchestrator.durations import shown
from orchestrator.learning.background_fit import fit_alone
from orchestrator.learning.fitting import BUDGET_BYTES, FitReport
from serving.analyzer.fitted import MIN_CALLS
from store.printable_text import one_line


@dataclass(frozen=True, slots=True)
class Fitted:
    """The result of one application's fit.

    Attributes:
        num_before: patterns in its library before the fit.
    """

    report: FitReport
    num_before: int
    took_s: float

    @property
    def num_kept(self) -> int:
        """Patterns in the store, including those outside the library and unreadable ones."""
        return self.report.num_runs + self.report.num_unreadable


def fit_all(
    url: str,
    requested: Sequence[str],
    *,
    budget_bytes: int | None,
    by_silhouette: bool,
    on_fitted: Callable[[Fitted], None],
    verbose: bool = False,
) -> list[str]:
    """Fit applications and show the progress.

    Args:
        requested: the applications; empty: all with patterns.
        on_fitted: called with the result of each fit as it completes.
    Returns:
        the applications that were skipped because another process is fitting them.
    Raises:
        BadInput: an application has no patterns; then none is fitted.
        FitInterrupted: a signal came; the library of the application being fitted is unchanged.
    """
    started: list[str] = []

    async def work() -> list[str]:
        sizes = await library_sizes(url)
        check_known(requested, sizes)
        skipped = []
        async with log_as_warnings():
            for application in dict.fromkeys(requested or sizes):
                started.append(application)
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
                    skipped.append(application)
                else:
                    took_s = time.monotonic() - began_s
                    on_fitted(Fitted(report, sizes[application], took_s))
        return skipped

    def interrupted(number: int) -> FitInterrupted:
        return FitInterrupted(number, started[-1] if started else None)

    return run_until_interrupted(work(), interrupted=interrupted)


def check_all_fitted(skipped: Sequence[str]) -> None:
    """Raise FitInProgress if applications were skipped because another process fits them."""
    if skipped:
        raise FitInProgress(skipped)


def fitted_lines(fitted: Fitted, *, ascii_only: bool = False) -> list[Text]:
    """The result of a fit, as text."""
    report = fitted.report
    dot = f" {(ASCII if ascii_only else UNICODE).dot} "
    library = (
        f"{counted(fitted.num_kept, 'pattern')} kept, {report.num_patterns:,} in the library "
        f"(before: {fitted.num_before:,}), {report.library_bytes:,} bytes"
    )
    if report.num_evicted:
        library += f"; {counted(report.num_evicted, 'pattern')} deleted as least used"
    if report.length_error is not None:
        lengths = f"not saved: {report.length_error}"
    elif report.has_length_model:
        lengths = f"a forest on {counted(report.num_calls, 'call')}"
    else:
        lengths = (
            f"recent answers of each step: {counted(report.num_calls, 'call')} (a forest "
            f"needs {MIN_CALLS})"
        )
    title = Text.assemble(
        (one_line(report.application), "bold"), f"{dot}fitted in {shown(fitted.took_s)}"
    )
    rows = {
        "library": library,
        "kernel": describe_kernel(report.kernel, is_fitted=True),
        "lengths": lengths,
    }
    if report.num_unreadable:
        rows["ignored"] = (
            f"{counted(report.num_unreadable, 'pattern')} that this version cannot read; "
            "kept in the store"
        )
    return [title, *(Text.assemble((f"  {name:8} ", "dim"), text) for name, text in rows.items())]


def fitted_document(fitted: Fitted) -> dict[str, object]:
    """The same as a JSON-safe object."""
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
