"""What the runtime logs, told to the user like every other warning."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from cli.terminal.output import warn

LOGGER = "orchestrate"


class _Warnings(logging.Handler):
    """Says each record on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say one record."""
        warn(record.getMessage())


@contextmanager
def logged_as_warnings() -> Iterator[None]:
    """While the block runs, our packages' warnings are said as the command's own."""
    logger, handler = logging.getLogger(LOGGER), _Warnings(logging.WARNING)
    propagates = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


@asynccontextmanager
async def log_as_warnings() -> AsyncIterator[None]:
    """The same where the block waits."""
    with logged_as_warnings():
        yield
