"""Prints warnings that our packages log like the command's own warnings."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from cli.terminal.output import warn

LOGGER = "orchestrate"


class _WarningHandler(logging.Handler):
    """Prints each record on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        warn(record.getMessage())


@contextmanager
def logged_as_warnings() -> Iterator[None]:
    """While the block runs, print our packages' warnings like the command's own."""
    logger, handler = logging.getLogger(LOGGER), _WarningHandler(logging.WARNING)
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
    """`logged_as_warnings` as an asynchronous context manager."""
    with logged_as_warnings():
        yield
