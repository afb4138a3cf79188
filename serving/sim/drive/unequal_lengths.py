"""The duration of steps on kernels that unequal context lengths in a batch slow down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.step_cost import Composition, StepCost


@dataclass(frozen=True, slots=True)
class UnequalLengths:
    """A step cost with a term for unequal lengths, which StepCost does not have.

        step = cost + share * decode_context_s * (d * longest - sum of the decodes' contexts)

    With share 1 each decode takes as long as the one with the longest context, as in a padded
    batch; with share 0 the step is that of the cost.

    Attributes:
        contexts: gives the context tokens of each request that decodes in the planned step.
        share: of the padding that costs time, 0 to 1. Assumed: Wu (2025), figure 4.4, shows that
            unequal lengths slow a batch down, and prints no number.
    """

    cost: StepCost
    contexts: Callable[[], Sequence[int]]
    share: float

    def seconds(self, composition: Composition) -> float:
        """Duration of the planned step."""
        contexts = self.contexts()
        padding = len(contexts) * max(contexts, default=0) - sum(contexts)
        return self.cost.seconds(composition) + self.share * self.cost.decode_context_s * padding
