"""Which of several replicas a request goes to: the one at which its turn comes first.

A dummy of the request waits in the queue of each. A replica answers it when its scheduler would
begin the request, and has computed nothing then; the other dummies are withdrawn.
Source: Wu (2025), section 4.3.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from serving.engine.server.slo_middleware import BEGUN_STATUS
from serving.gateway.attempt import CutOff, Failed, Upstream, kept, next_part, unreachable
from serving.gateway.body import Body
from serving.gateway.fleet_state import Choice
from serving.gateway.replica_state import ReplicaState
from serving.gateway.retries import may_retry, outcome_of_status
from serving.slo import remaining

Turn = ReplicaState | web.Response | Failed
"""The replica at which its turn has come; an answer that is final; or that another may be asked."""


async def first_turn(
    upstream: Upstream, request: web.BaseRequest, body: Body, choice: Choice, arrived_s: float
) -> Turn:
    """Wait until the turn of a request comes at one of the chosen replicas.

    If it comes at none, the answer of one that refused or dropped it, else that of one that failed.
    """
    turns = [
        asyncio.create_task(_turn_at(each, upstream, request, body, choice, arrived_s))
        for each in choice.replicas
    ]
    ends: list[web.Response | Failed] = []
    try:
        for next_end in asyncio.as_completed(turns):
            end = await next_end
            if isinstance(end, ReplicaState):
                return end
            ends.append(end)
    finally:
        for task in turns:
            task.cancel()
        await asyncio.wait(turns)
    return next((each for each in ends if isinstance(each, web.Response)), ends[-1])


async def _turn_at(
    replica: ReplicaState,
    upstream: Upstream,
    request: web.BaseRequest,
    body: Body,
    choice: Choice,
    arrived_s: float,
) -> Turn:
    now_s = upstream.now_s()
    tags = remaining(body.tags, body.slo, spent_s=now_s - arrived_s) | {"slo_dummy": True}
    number = replica.sent(choice.request, now_s)
    outcome = "withdrawn"
    try:
        async with upstream.until_stopped():
            answer = await upstream.post(replica, request, body.with_tags(tags))
            try:
                content = await kept(answer, await next_part(answer))
            finally:
                answer.close()
        if answer.status == BEGUN_STATUS:
            outcome = "begun"
            return replica
        outcome = "ended"
        return Failed(content) if may_retry(outcome_of_status(answer.status)) else content
    except CutOff as error:
        outcome = "ended"
        return unreachable(replica, error)
    finally:
        replica.ended(number)
        upstream.metrics.count_dummy(replica.url, outcome)
