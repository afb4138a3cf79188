"""`orchestrate patterns fit` with a fit that takes minutes, for tests that interrupt it."""

from __future__ import annotations

import time
from typing import Any

from cli.main import main
from cli.terminal.output import say
from orchestrator.learning import fitting


def slow_clustering(*_: Any) -> Any:
    say("clustering started")
    time.sleep(300)


fitting.compacted = slow_clustering
main(["patterns", "fit"])
