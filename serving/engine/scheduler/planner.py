"""The policy in use, when its next plan is due, and online tuning of its parameter."""

from __future__ import annotations

import math

from serving.engine.scheduler.parameter_tuning import TunedPolicy
from serving.errors import PolicyFailed
from serving.policies.table import PolicySpec
from serving.view import Plan, Policy, StepView, plan_faults


class Planner:
    """Asks the policy for a plan at arrivals and ends, and when the last plan has expired.

    A plan may hold for a few steps whatever happens (`Plan.least_steps`), as long as these steps
    compute something; one new plan then covers all changes meanwhile.

    Attributes:
        spec: the policy, by name and parameters.
        policy: the policy in use, with the present epoch's parameter if it is tuned.
        tuned: tunes a parameter of the policy; None if it has none to tune.
        plan_due: whether something has changed since the last plan.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self.use(spec)

    def use(self, spec: PolicySpec) -> None:
        """Use this policy from the next step on."""
        self.spec = spec
        self.tuned = TunedPolicy.of(spec)
        self.policy: Policy = spec.build() if self.tuned is None else self.tuned.policy
        self._ends_step = 0
        self._ends_s = math.inf
        self.plan_now()

    def tune(self, now_s: float) -> None:
        """Use the next epoch's parameter if a new epoch starts."""
        if self.tuned is not None and self.tuned.advance(now_s):
            self.policy = self.tuned.policy
            self.plan_due = True

    def plan_now(self) -> None:
        """Make a plan before the next step, even if the present plan is held."""
        self.plan_due = True
        self._holds_until_step = 0

    def is_due(self, *, step: int, now_s: float, is_computing: bool) -> bool:
        """Whether a new plan is needed before this step.

        Args:
            is_computing: whether a running request is not paused.
        """
        if is_computing and step < self._holds_until_step:
            return False
        return self.plan_due or step >= self._ends_step or now_s >= self._ends_s

    def decide(self, view: StepView) -> Plan:
        """The policy's plan, checked against the contract of `serving.view`.

        Raises:
            PolicyFailed: the policy raised an error, or its plan breaks the contract.
        """
        try:
            plan: object = self.policy(view)
        except Exception as error:  # a user's function may raise anything
            raise PolicyFailed(self.spec.name, f"{type(error).__name__}: {error}") from error
        if not isinstance(plan, Plan):
            raise PolicyFailed(self.spec.name, f"it returned {type(plan).__name__} and not a Plan")
        faults = plan_faults(view, plan)
        if faults:
            raise PolicyFailed(self.spec.name, "; ".join(faults))
        return plan

    def follow(self, plan: Plan, *, step: int) -> None:
        """A plan takes effect at this step."""
        self.plan_due = False
        self._holds_until_step = step + plan.least_steps
        self._ends_step = step + plan.steps
        self._ends_s = plan.until_s
