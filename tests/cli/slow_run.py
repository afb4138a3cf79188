"""A run that would take minutes, for tests that interrupt it: argument 1 is its corpus."""

from __future__ import annotations

import sys
from pathlib import Path

from cli.failures import exit_code_of, message_of
from cli.terminal.output import complain
from cli.work.deep_research import Request, run
from orchestrator.settings import read_settings
from orchestrator.testing import ScriptedEngine

request = Request(
    question="How is a deadline divided?",
    corpus=Path(sys.argv[1]),
    deadline="10m",
    rounds=1,
    width=1,
    out=None,
    as_json=False,
)
engine = ScriptedEngine(lambda _: "too slow", token_s=300.0)
try:
    run(request, read_settings(), engine=engine)
except Exception as error:
    complain(message_of(error))
    sys.exit(exit_code_of(error))
