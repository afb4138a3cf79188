"""Timeline: when a run's steps and calls took place, as text and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.display.run_text import deadline_line
from store.printable_text import one_line
from store.records import CallRecord, RunRecord, StepRecord

if TYPE_CHECKING:
    from patterns.svg import Picture

_WIDTH = 100


@dataclass(frozen=True, slots=True, repr=False)
class Timeline:
    """A run over time: bars for its steps, LLM calls and tools, marks for their sub-deadlines.

    A notebook shows it as a picture, a terminal as text.

    Attributes:
        run: the run's record.
        calls, steps: the records of its calls and steps.
        now_s: of a run that had not ended: seconds from its start to the moment of the picture.
    """

    run: RunRecord
    calls: Sequence[CallRecord] = ()
    steps: Sequence[StepRecord] = ()
    now_s: float | None = None

    @property
    def svg(self) -> str:
        """The picture as a file of its own: `Path("run.svg").write_text(timeline.svg)`."""
        return self._picture().svg

    def text(self, *, width: int = _WIDTH, ascii_only: bool = False) -> str:
        """The same as text: a line for each stage, in at most `width` columns, at least 40.

        Of a run of very many stages, the last line stands for all others.
        """
        from orchestrator.display.text_timeline import timeline_lines  # rich takes time to import

        lines = timeline_lines(
            self.run, self.calls, width=width, ascii_only=ascii_only, now_s=self.now_s
        )
        taken_s = self.now_s if self.run.elapsed_s is None else self.run.elapsed_s
        head = f"{one_line(self.run.flow)}, {self.run.status}: {deadline_line(self.run, taken_s)}"
        return "\n".join([head, *(line.plain.rstrip() for line in lines)])

    @property
    def html(self) -> str:
        """The picture as an element of a page, in the page's text colour."""
        return self._picture().html

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html

    def _picture(self) -> Picture:
        from orchestrator.display.timeline_svg import timeline_picture  # it needs NumPy

        return timeline_picture(self.run, self.calls, self.steps, now_s=self.now_s)
