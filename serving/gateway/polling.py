"""Asks a replica for its snapshot, again and again, over one connection that is kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aiohttp

from serving.gateway.replica_state import SUSPECT_S, ReplicaState
from serving.gateway.reports import InvalidReport, parse_report

POLL_S = 0.1
"""Seconds between two polls. One costs a replica 1 ms; what was sent since is counted here."""

PLAIN_POLL_S = 0.5
"""The same for a replica without snapshots, of which only a sign of life is wanted."""

MODELS_S = 5.0
"""Age at which the models of a replica without snapshots are asked for again."""

SNAPSHOT_PATH = "/orchestrate/snapshot"
MODELS_PATH = "/v1/models"

CLIENT_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
"""What a request to a replica can raise."""

logger = logging.getLogger("orchestrate")


class Poller:
    """Keeps the state of one replica up to date.

    Args:
        api_key: the key that the replica wants; None: none.
        now_s: the monotonic clock of the state.
    """

    def __init__(
        self, replica: ReplicaState, *, api_key: str | None, now_s: Callable[[], float]
    ) -> None:
        self._replica = replica
        self._now_s = now_s
        self._models_s: float | None = None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1),
            timeout=aiohttp.ClientTimeout(total=SUSPECT_S),
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        )

    async def run(self) -> None:
        """Poll until this task is cancelled; a poll never begins while one is open."""
        while True:
            began_s = self._now_s()
            await self.poll()
            period_s = POLL_S if self._replica.makes_reports else PLAIN_POLL_S
            await asyncio.sleep(max(began_s + period_s - self._now_s(), 0.0))

    async def poll(self) -> None:
        """Ask once; a failure is noted in the state, and logged if it is new."""
        former = self._replica.failure
        try:
            await self._ask()
        except (*CLIENT_ERRORS, InvalidReport) as error:
            self._replica.failed(str(error) or type(error).__name__)
        failure = self._replica.failure
        if failure and not former:
            logger.warning(
                "replica %s does not answer as it should: %s", self._replica.url, failure
            )
        elif former and not failure:
            logger.warning("replica %s answers again", self._replica.url)

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()

    async def _ask(self) -> None:
        asked_s = self._now_s()
        async with self._session.get(
            self._replica.url + SNAPSHOT_PATH, allow_redirects=False
        ) as answer:
            content = await answer.read()
        if answer.status == 200:
            report = parse_report(content)
            self._replica.reported(report, asked_s=asked_s, heard_s=self._now_s())
        elif answer.status == 404:
            self._replica.without_reports()
            await self._ask_models(asked_s)
            self._replica.heard(self._now_s())
        else:
            raise InvalidReport(_reason(answer.status))

    async def _ask_models(self, now_s: float) -> None:
        if self._models_s is not None and now_s - self._models_s < MODELS_S:
            return
        async with self._session.get(
            self._replica.url + MODELS_PATH, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                raise InvalidReport(_reason(answer.status))
            document = await answer.json(content_type=None)
        try:
            self._replica.models = tuple(str(model["id"]) for model in document["data"])
        except (KeyError, TypeError) as error:
            raise InvalidReport(f"{MODELS_PATH} is no list of models") from error
        self._models_s = now_s


def _reason(status: int) -> str:
    if status in (401, 403):
        return f"it answers {status}: give the gateway its key in ORCHESTRATE_API_KEY"
    return f"it answers {status}"
