"""Fits in background processes, like git's garbage collection: started at times, not waited for.

A fit may outlive the process that started it. At most one fits an application at a time. Each part
of its result is replaced atomically, so a fit may be killed at any moment.
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
from store.database.private_files import private_folder
from store.session import open_store

logger = logging.getLogger("orchestrate")

LOG_BYTES = 100_000
"""Size at which the log of a store's fits is rotated; one old file is kept."""

# In the environment rather than an argument, which `ps` shows: a URL may contain a password.
_STORE = "ORCHESTRATE_STORE"


class BackgroundFit:
    """Starts fits of a store's applications, at most one of each application at a time."""

    def __init__(self, store_url: str) -> None:
        self._store_url = store_url
        self._watchers: dict[str, Thread] = {}  # each waits for the process of its application

    def start(self, application: str) -> None:
        """Start a fit, unless one started here still runs; OSError if no process can be started."""
        watcher = self._watchers.get(application)
        if watcher is not None and watcher.is_alive():
            return
        process_id = self._spawn(application)
        watcher = Thread(target=_await_exit, args=(process_id, application), daemon=True)
        self._watchers[application] = watcher
        watcher.start()

    def _spawn(self, application: str) -> int:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            return os.posix_spawn(
                sys.executable,
                # -P: do not import a folder named store from the working directory.
                [sys.executable, "-P", "-m", "orchestrator.learning.background_fit", application],
                dict(os.environ) | {_STORE: self._store_url},
                file_actions=[(os.POSIX_SPAWN_DUP2, null, stream) for stream in (0, 1, 2)],
                setsid=True,
            )
        finally:
            os.close(null)


def _await_exit(process_id: int, application: str) -> None:
    """Wait for a fit's process, and log a warning if it failed."""
    try:
        _, status = os.waitpid(process_id, 0)
    except ChildProcessError:  # other code of this program has waited for it
        return
    if status:
        code = os.waitstatus_to_exitcode(status)
        logger.warning(
            "%s was not fitted (exit %d); `orchestrate patterns fit` says why", application, code
        )


def lock_of(store_url: str, application: str) -> FileLock:
    """The lock that a process holds while it fits an application."""
    return FileLock(lock_file(models_folder(store_url), application))


async def fit_alone(
    store_url: str,
    application: str,
    *,
    budget_bytes: int = BUDGET_BYTES,
    by_silhouette: bool = False,
    progress: Progress = lambda message: None,
) -> FitReport | None:
    """Fit an application under its lock; returns None if another process is fitting it.

    Args:
        budget_bytes, by_silhouette, progress: as for `fit_application`.
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
    """The background process: fits the application named by its argument, and logs errors."""
    [application] = sys.argv[1:]
    store_url = os.environ[_STORE]
    with suppress(OSError):
        os.nice(10)
    with suppress(OSError):  # without a log, the exit code still reports a failure
        folder = models_folder(store_url)
        private_folder(folder)
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
