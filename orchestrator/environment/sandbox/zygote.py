"""The zygote: a small process with one thread, which forks the sandboxes.

A process with threads cannot enter a new user namespace, and ours has vLLM's. All sandboxes end
with the zygote, and the zygote with its parent.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from typing import NoReturn

from .init import become_sandbox
from .messages import receive, send


def main() -> NoReturn:
    """Serve the socket whose descriptor is the last argument, until our parent has ended."""
    orders = socket.socket(fileno=int(sys.argv[-1]))
    # Not a signal at its end: the system sends that when the parent's *thread* ends. And the end of
    # the socket alone would not do: a fork of the parent has the socket too.
    parent = os.pidfd_open(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for our parent
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no sandbox stays a zombie
    while True:
        ready, _, _ = select.select([orders.fileno(), parent], [], [])
        plan, descriptors = receive(orders) if orders.fileno() in ready else (None, [])
        if plan is None:
            os._exit(0)
        zygote = os.getpid()
        if os.fork() == 0:
            orders.close()
            control = socket.socket(fileno=descriptors[0])
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                become_sandbox(plan, control, zygote)  # type: ignore[arg-type]
            except BaseException as error:
                number = error.errno if isinstance(error, OSError) else None
                send(control, {"error": str(error), "errno": number})
            finally:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)
