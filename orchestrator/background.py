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

from orchestrator.fitting import BUDGET_BYTES, FitReport, Progress, fit_application
from orchestrator.models import model_file, models_folder
from serving.errors import ModelNotSaved
from store.session import open_store

logger = logging.getLogger("orchestrate")

_STORE = (
    "ORCHESTRATE_STORE"  # in the environment: a URL may hold a password, and ps shows arguments
)


class BackgroundFit:
    """Starts fits of a store's applications."""

    def __init__(self, store_url: str) -> None:
        self._store_url = store_url
        self._running: list[int] = []

    def start(self, application: str) -> None:
        """Begin a fit; raises OSError where no process can be started."""
        self.close()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            self._running.append(
                os.posix_spawn(
                    sys.executable,
                    # -P: a folder named store in the working directory is none of ours.
                    [sys.executable, "-P", "-m", "orchestrator.background", application],
                    dict(os.environ) | {_STORE: self._store_url},
                    file_actions=[(os.POSIX_SPAWN_DUP2, null, stream) for stream in (0, 1, 2)],
                    setsid=True,
                )
            )
        finally:
            os.close(null)

    def close(self) -> None:
        """Take note of those that have ended; the others go on."""
        for process_id in list(self._running):
            with suppress(ChildProcessError):
                if os.waitpid(process_id, os.WNOHANG) == (0, 0):
                    continue
            self._running.remove(process_id)


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
    from filelock import FileLock, Timeout

    models = models_folder(store_url)
    lock = FileLock(model_file(models, application).with_suffix(".lock"))
    try:
        models.mkdir(parents=True, exist_ok=True)
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
    with suppress(OSError):
        os.nice(10)
    store_url = os.environ[_STORE]
    log = models_folder(store_url) / "fit.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=log, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(fit_alone(store_url, application))
    except Exception:
        logger.exception("%s could not be fitted", application)
        sys.exit(1)


if __name__ == "__main__":
    main()
