"""Speculative decoding, shown to policies as steps that yield one token per decode.

With drafts a decode computes several tokens in a step and keeps some of them. Policies reason in
steps that yield each answer one token. So they see such steps, shorter than real ones by the tokens
that a real one keeps, and their plans are converted back. Without drafts both are the same.
"""

from __future__ import annotations

import math

from serving.view import Plan, StepView

MEMORY_STEPS = 1000.0
"""A step that many steps ago has the weight 1/e."""

_DECAY = 1.0 - 1.0 / MEMORY_STEPS


class Speculation:
    """What decodes compute and keep: exponentially decayed means over steps."""

    def __init__(self) -> None:
        self._decodes = self._drafts = self._accepted = 0.0  # decayed sums

    def launched(self, num_decodes: int, num_drafts: int) -> None:
        """A step with this many decodes begins; it computes this many drafted tokens as well."""
        self._decodes = _DECAY * self._decodes + num_decodes
        self._drafts = _DECAY * self._drafts + num_drafts
        self._accepted *= _DECAY

    def completed(self, num_accepted: int) -> None:
        """This many of a step's drafts were accepted."""
        self._accepted += num_accepted

    @property
    def kept_per_decode(self) -> float:
        """Tokens that a decode yields per step, at least 1."""
        return 1.0 + self._accepted / self._decodes if self._decodes else 1.0

    @property
    def computed_per_decode(self) -> float:
        """Tokens that a decode takes of a step's budget, at least as many as it keeps."""
        drafts = self._drafts / self._decodes if self._decodes else 0.0
        return max(1.0 + drafts, self.kept_per_decode)

    def view_of(self, view: StepView) -> StepView:
        """The same machine in steps that yield one token per decode."""
        kept, model = self.kept_per_decode, view.model
        # What a decode costs for each token that it keeps, beyond the cost of any new token.
        decode_s = (self.computed_per_decode * model.token_s + model.sequence_s) / kept
        return view._replace(
            step_tokens=max(int(view.step_tokens / kept), 1),
            token_s=view.token_s / kept,
            mean_step_s=view.mean_step_s / kept,
            model=model._replace(
                base_s=model.base_s / kept,
                sequence_s=max(decode_s - model.token_s, 0.0),
                context_s=model.context_s / kept,
            ),
        )

    def plan_of(self, plan: Plan, *, num_decodes: int, step_tokens: int) -> Plan:
        """A plan made for such steps, converted to real ones.

        Args:
            num_decodes: decodes that the plan runs.
            step_tokens: most tokens of a real step.
        """
        kept = self.kept_per_decode
        if plan.step_tokens is not None:
            prompt_tokens = max(plan.step_tokens - num_decodes, 0) * kept
            budget = math.ceil(prompt_tokens + num_decodes * self.computed_per_decode)
            plan = plan._replace(step_tokens=max(min(budget, step_tokens), 1))
        if plan.chunk_tokens is not None:
            plan = plan._replace(chunk_tokens=math.ceil(plan.chunk_tokens * kept))
        return plan._replace(
            steps=max(int(plan.steps / kept), 1),
            least_steps=max(int(plan.least_steps / kept), 1),
        )
