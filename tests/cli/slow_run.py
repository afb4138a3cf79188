"""A run that takes minutes, for tests that interrupt it. Argument 1: the corpus folder."""

from __future__ import annotations

import sys

from agents.deep_research.command import PIPELINE
from cli.failures import exit_code_of, message_of
from cli.terminal.output import complain
from cli.work.flow_arguments import parameters_of
from cli.work.run_flow import run_flow
from orchestrator.settings import read_settings
from orchestrator.testing import ScriptedEngine

typed = {
    "question": "How is a deadline divided?",
    "corpus": sys.argv[1],
    "rounds": "1",
    "width": "1",
    "profile": "large",
}
parameters = {each: typed[each.name] for each in parameters_of(PIPELINE.flow, taken=())}
engine = ScriptedEngine(lambda _: "too slow", token_s=300.0)
try:
    run_flow(PIPELINE, parameters, read_settings(), deadline="10m", engine=engine)
except Exception as error:
    complain(message_of(error))
    sys.exit(exit_code_of(error))
