"""The SDK: agent workflows as plain async Python, with a deadline that the engine knows.

from orchestrator import flow, gather, llm, step
"""

from orchestrator.errors import (
    DeadlineExceeded,
    InvalidDuration,
    InvalidRunId,
    InvalidSettings,
    OrchestrateError,
    OutsideRun,
)
from orchestrator.flow import Flow, flow, step, tool
from orchestrator.primitives import gather, has_deadline, llm, remaining, within
from orchestrator.runtime import RunResult, Runtime, StageReport
from orchestrator.settings import Settings, read_settings
from orchestrator.wiring import open_runtime
from serving.generation import Message

__all__ = [
    "DeadlineExceeded",
    "Flow",
    "InvalidDuration",
    "InvalidRunId",
    "InvalidSettings",
    "Message",
    "OrchestrateError",
    "OutsideRun",
    "RunResult",
    "Runtime",
    "Settings",
    "StageReport",
    "flow",
    "gather",
    "has_deadline",
    "llm",
    "open_runtime",
    "read_settings",
    "remaining",
    "step",
    "tool",
    "within",
]
