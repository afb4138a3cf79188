"""A scheduling policy of your own: a pure function of what the engine shows, in a file of yours.

orchestrate bench mixed --policy examples/my_policy.py:shortest_prompt_first --loads 1.0
orchestrate run deep-research "..." --policy examples/my_policy.py:shortest_prompt_first
"""

import numpy as np

from serving.policies.ranking import order_by
from serving.policies.urgency import deadline_class
from serving.view import Plan, StepView


def shortest_prompt_first(view: StepView, *, patience_s: float = 10.0) -> Plan:
    """The shortest prompt first; requests that have waited for `patience_s` come before them."""
    waited_s = view.now_s - view.requests.arrival_s
    rank = np.where(waited_s > patience_s, 0.0, view.requests.prompt_tokens)
    return order_by(view, deadline_class(view), rank)
