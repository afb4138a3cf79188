"""What one call asks for beside its request: an engine, and targets of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from serving.slo import DEFAULT_TBT_S, DEFAULT_TTFT_S, OnLate, Slo, SloKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options of one call; None: as the run decides.

    Attributes:
        engine: name of the engine that answers it.
        model: a model that the engine serves, or by which the engine is found.
        ttft_s, tbt_s: targets of a stream: seconds to the first token, and between tokens.
        waiting_s: longest time without service before the scheduler drops the request.
    Raises:
        ValueError: what should name an engine or a model is no text.
    """

    engine: str | None = None
    model: str | None = None
    ttft_s: float | None = None
    tbt_s: float | None = None
    waiting_s: float | None = None

    def __post_init__(self) -> None:
        for what, name in (("engine", self.engine), ("model", self.model)):
            if name is not None and not isinstance(name, str):
                raise ValueError(f"{what}= names one: give a text, not {name!r:.80}")

    def applied_to(self, slo: Slo) -> Slo:
        """The SLO of a call of the run with these targets.

        With a target of a stream it is of kind latency, which has no deadline in the engine: its
        tokens are due one by one. The deadline of the run, or of a block, still ends the call.
        """
        if self.ttft_s is None and self.tbt_s is None:
            return slo if self.waiting_s is None else replace(slo, waiting_s=self.waiting_s)
        return Slo(
            kind=SloKind.LATENCY,
            ttft_s=DEFAULT_TTFT_S if self.ttft_s is None else self.ttft_s,
            tbt_s=DEFAULT_TBT_S if self.tbt_s is None else self.tbt_s,
            waiting_s=self.waiting_s,
            on_late=OnLate.CONTINUE,
            program=slo.program,
            stage=slo.stage,
            length=slo.length,
            weight=slo.weight,
            user=slo.user,
        )


NO_OPTIONS = CallOptions()
