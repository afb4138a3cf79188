"""A fit that would take minutes, for tests that interrupt it: as `orchestrate patterns fit`."""

from __future__ import annotations

import time
from typing import Any

from cli.main import main
from cli.terminal.output import say
from orchestrator.learning import fitting


def never(*_: Any) -> Any:
    say("clusters are sought")
    time.sleep(300)


fitting._compacted = never
main(["patterns", "fit"])
