"""The engine core's process ends with the process that started it, however that ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def end_with_parent() -> None:
    """Have this process ended when its parent is gone; nothing happens in a process without one.

    vLLM does so only where the parent could still say goodbye: one that was killed leaves its
    engine behind, with all of the accelerator's memory.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
