"""Ends a child process when its parent process ends, even if the parent was killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def end_with_parent() -> None:
    """End this process when its parent process ends; does nothing without a parent process.

    vLLM ends its engine process only if the parent process exits normally. After a kill the engine
    process would keep running, and keep the accelerator's memory.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
