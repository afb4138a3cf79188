"""slo_tags: what any OpenAI client sends to carry the deadline to our server."""

from __future__ import annotations

from typing import Any

from orchestrator.execution.carried_slo import slo_of_now
from orchestrator.execution.context import current_context
from serving.slo import to_tags


def slo_tags() -> dict[str, Any]:
    """The fields of a request to our server that carry the deadline of where this is called.

        await client.chat.completions.create(..., extra_body=slo_tags())

    They are fields of the JSON body, so any HTTP client can send them. They say what an `llm` call
    here would say: seconds left for its stage and its run, the run, its stage and its user. But
    the request is not recorded, is no call of the run's graph, and is not ended at the deadline
    unless the code that awaits it is. Times count from the request's arrival: call this for each
    request, when it is sent. Servers other than ours may refuse the fields.

    Returns:
        {"vllm_xargs": tags}; empty if there is nothing to say: no deadline, and no user.
    Raises:
        OutsideRun: not within a flow.
    """
    tags = to_tags(slo_of_now(current_context("slo_tags()")))
    return {"vllm_xargs": tags} if tags else {}
