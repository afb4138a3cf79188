"""A fit in a process of its own, as git collects its garbage: begun now and then, never waited for.

It may outlive the process that began it. At most one works on an application at a time; what it
writes comes in place whole or not at all, so that it may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from threading import Thread

from filelock import FileLock, Timeout

from orchestrator.learning.fitting import BUDGET_BYTES, FitReport, Progress, fit_application
from orchestrator.learning.model_files import lock_file, models_folder
from serving.errors import ModelNotSaved
from store.session import open_store

logger = logging.getLogger("orchestrate")

LOG_BYTES = 100_000

# In the environment, not among the arguments, which `ps` shows: a URL may hold a password.
_STORE = "ORCHESTRATE_STORE"


class BackgroundFit:
    """Starts fits of a store's applications, one of each at a time."""

    def __init__(self, store_url: str) -> None:
        self._store_url = store_url
        self._running: dict[str, Thread] = {}  # each waits for its process, and is done with it

    def start(self, application: str) -> None:
        """Begin a fit, unless one that was begun here goes on; OSError where no process starts."""
        running = self._running.get(application)
        if running is not None and running.is_alive():
            return
        process_id = self._spawned(application)
        watch = Thread(target=_see_off, args=(process_id, application), daemon=True)
        self._running[application] = watch
        watch.start()

    def _spawned(self, application: str) -> int:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            return os.posix_spawn(
                sys.executable,
                # -P: a folder named store in the working directory is none of ours.
                [sys.executable, "-P", "-m", "orchestrator.learning.background_fit", application],
                dict(os.environ) | {_STORE: self._store_url},
                file_actions=[(os.POSIX_SPAWN_DUP2, null, stream) for stream in (0, 1, 2)],
                setsid=True,
            )
        finally:
            os.close(null)


def _see_off(process_id: int, application: str) -> None:
    """Wait for a fit's end, and say so if it was a bad one."""
    try:
        _, status = os.waitpid(process_id, 0)
    except ChildProcessError:  # somebody else in this program waited for it
        return
    if status:
        code = os.waitstatus_to_exitcode(status)
        logger.warning(
            "%s was not fitted (exit %d); `orchestrate patterns fit` says why", application, code
        )


def lock_of(store_url: str, application: str) -> FileLock:
    """The lock that whoever fits an application holds."""
    return FileLock(lock_file(models_folder(store_url), application))


async def fit_alone(
    store_url: str,
    application: str,
    *,
    budget_bytes: int = BUDGET_BYTES,
    by_silhouette: bool = False,
    progress: Progress = lambda message: None,
) -> FitReport | None:
    """Fit an application, and say what came of it; None where somebody else is fitting it.

    Args:
        budget_bytes, by_silhouette, progress: as `fit_application` takes them.
    Raises:
        StoreError: the store cannot be read or written.
        ModelNotSaved: the folder of the length models cannot be written.
    """
    models = models_folder(store_url)
    lock = lock_of(store_url, application)
    try:
        models.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except OSError as cause:
        raise ModelNotSaved(str(models), cause.strerror or str(cause)) from cause
    try:
        async with await open_store(store_url) as store:
            return await fit_application(
                store,
                application,
                models=models,
                now=datetime.now(UTC),
                budget_bytes=budget_bytes,
                by_silhouette=by_silhouette,
                progress=progress,
            )
    finally:
        lock.release()


def main() -> None:
    """The background process: fit the application that is named, and log what goes wrong."""
    [application] = sys.argv[1:]
    store_url = os.environ[_STORE]
    with suppress(OSError):
        os.nice(10)
    with suppress(OSError):  # without a log the exit code tells whoever began it
        folder = models_folder(store_url)
        folder.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(folder / "fit.log", maxBytes=LOG_BYTES, backupCount=1)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger().addHandler(handler)
    try:
        asyncio.run(fit_alone(store_url, application))
    except Exception:
        logger.exception("%s could not be fitted", application)
        sys.exit(1)


if __name__ == "__main__":
    main()
