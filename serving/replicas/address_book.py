"""Where the replicas of an application are: they announce themselves, again and again.

An actor of Ray. It belongs to the gateway's process; a gateway that starts anew makes another one,
in which the replicas announce themselves too.
"""

from __future__ import annotations

import time

ANNOUNCE_S = 1.0
"""Seconds between two announcements of a replica."""

FORGET_S = 5.0
"""Silence after which a replica is forgotten."""

NAMESPACE = "orchestrate"
"""Of the actors' names in Ray."""


class AddressBook:
    """The replicas that announced themselves lately."""

    def __init__(self) -> None:
        self._announced: dict[str, tuple[str, float]] = {}

    def announce(self, replica: str, url: str) -> None:
        """A replica answers at this address."""
        self._announced[replica] = (url, time.monotonic())

    def withdraw(self, replica: str) -> None:
        """A replica has ended."""
        self._announced.pop(replica, None)

    def urls(self) -> list[str]:
        """The addresses, in the order of the first announcements."""
        since_s = time.monotonic() - FORGET_S
        return [url for url, announced_s in self._announced.values() if announced_s >= since_s]
