"""Speculative decoding, seen as a machine whose steps bring one token: what policies plan for.

With drafts a decode computes several tokens in a step and keeps some of them. Policies reason in
steps that bring each answer one token, so they are shown such steps, shorter by as many as a real
one brings, and what they plan is turned back. Without drafts both are the same.
"""

from __future__ import annotations

import math

from serving.view import Plan, StepView

MEMORY_STEPS = 1000.0
"""A step this long ago counts 1/e of a new one."""

_DECAY = 1.0 - 1.0 / MEMORY_STEPS


class Speculation:
    """What decodes compute and keep, on average over the latest steps."""

    def __init__(self) -> None:
        self._decodes = self._drafts = self._accepted = 0.0  # sums; older steps count less

    def launched(self, num_decodes: int, num_drafts: int) -> None:
        """A step of so many decodes begins, which computes so many drafted tokens beside."""
        self._decodes = _DECAY * self._decodes + num_decodes
        self._drafts = _DECAY * self._drafts + num_drafts
        self._accepted *= _DECAY

    def completed(self, num_accepted: int) -> None:
        """Of a step's drafts so many were kept."""
        self._accepted += num_accepted

    @property
    def brings(self) -> float:
        """Tokens that a decode brings its answer, at least 1."""
        return 1.0 + self._accepted / self._decodes if self._decodes else 1.0

    @property
    def computes(self) -> float:
        """Tokens that it takes of a step, at least as many."""
        drafts = self._drafts / self._decodes if self._decodes else 0.0
        return max(1.0 + drafts, self.brings)

    def shown(self, view: StepView) -> StepView:
        """The same machine in steps that bring a token each."""
        brings, model = self.brings, view.model
        # What a decode adds for each token that it brings, above that of any new token.
        more_s = (self.computes * model.token_s + model.sequence_s) / brings - model.token_s
        return view._replace(
            step_tokens=max(int(view.step_tokens / brings), 1),
            token_s=view.token_s / brings,
            mean_step_s=view.mean_step_s / brings,
            model=model._replace(
                base_s=model.base_s / brings,
                sequence_s=max(more_s, 0.0),
                context_s=model.context_s / brings,
            ),
        )

    def meant(self, plan: Plan, *, num_decodes: int, step_tokens: int) -> Plan:
        """A plan for such steps as one for real ones.

        Args:
            num_decodes: those that the plan runs.
            step_tokens: most tokens of a real step.
        """
        brings = self.brings
        if plan.step_tokens is not None:
            read = max(plan.step_tokens - num_decodes, 0) * brings
            budget = math.ceil(read + num_decodes * self.computes)
            plan = plan._replace(step_tokens=max(min(budget, step_tokens), 1))
        if plan.chunk_tokens is not None:
            plan = plan._replace(chunk_tokens=math.ceil(plan.chunk_tokens * brings))
        return plan._replace(
            steps=max(int(plan.steps / brings), 1),
            least_steps=max(int(plan.least_steps / brings), 1),
        )
