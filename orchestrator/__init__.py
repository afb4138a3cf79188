"""The SDK: agent workflows as plain async Python, with a deadline that the engine knows.

from orchestrator import flow, gather, llm, step
"""

import orchestrator.own_packages  # noqa: F401  # first: its error names a file that hides a package
from orchestrator.display.timeline import Timeline
from orchestrator.environment.beginning import (
    workspace,
)
from orchestrator.environment.checkpoints import (
    Checkpoint,
)
from orchestrator.environment.completed import (
    Completed,
)
from orchestrator.environment.conflicts import (
    Conflict,
)
from orchestrator.environment.errors import (
    ApplyBusy,
    ApplyFailed,
    ApplyUnfinished,
    BaseChanged,
    BaseRefused,
    CommandFailed,
    InvalidResolution,
    MergeConflict,
    NotRevertible,
    NoWorkspace,
    OutsideWorkspace,
    SandboxFailed,
    ServiceFailed,
    ShellBusy,
    StateLost,
    WorkspaceBusy,
    WorkspaceClosed,
    WorkspaceFull,
)
from orchestrator.environment.merging.change_set import (
    ChangeSet,
)
from orchestrator.environment.state_merging import (
    MergeResult,
)
from orchestrator.environment.states.stored_states import (
    Service,
)
from orchestrator.environment.trees.tree import (
    WorkspaceLimits,
)
from orchestrator.environment.workspace import (
    Workspace,
    current_workspace,
)
from orchestrator.errors import (
    AnswerRefused,
    ArgumentsDiffer,
    BudgetExceeded,
    DeadlineExceeded,
    DeadlineInfeasible,
    EffectsAfterFork,
    FlowChanged,
    InvalidCron,
    InvalidDuration,
    InvalidQueueOption,
    InvalidRunId,
    InvalidSettings,
    McpServerFailed,
    NoForkPoint,
    NoOpenQuestion,
    OrchestrateError,
    OutcomeNotRecorded,
    OutcomeUnknown,
    OutsideRun,
    PackageShadowed,
    ResultNotSerialisable,
    ResultUnreadable,
    RunAlreadyEnded,
    RunCancelled,
    RunEnded,
    RunInterrupted,
    RunNotForkable,
    RunNotResumable,
    RuntimeDraining,
    StepFailed,
    ToolCallsInvalid,
    ToolFailed,
    UnknownEngine,
    UnknownModel,
    WouldBlock,
    WrongLoop,
)
from orchestrator.execution.budgets import Budget
from orchestrator.execution.deadline_handling import best_so_far
from orchestrator.execution.step_execution import Happened
from orchestrator.runtime.handle import RunHandle
from orchestrator.runtime.results import RunResult, RunUsage, StageReport
from orchestrator.runtime.run_control import Question, RunInfo, RunStatus
from orchestrator.runtime.runtime import Runtime
from orchestrator.runtime.submission import Submitted
from orchestrator.runtime.worker import Worker
from orchestrator.sdk.answers import Answer
from orchestrator.sdk.budgets import budget
from orchestrator.sdk.choose import Choice, choose
from orchestrator.sdk.determinism import now, random, run_id, uuid
from orchestrator.sdk.embed import embed
from orchestrator.sdk.flow import Flow, flow
from orchestrator.sdk.human_input import input_required
from orchestrator.sdk.llm import llm
from orchestrator.sdk.llm_stream import llm_stream
from orchestrator.sdk.model_info import ModelInfo, model_info
from orchestrator.sdk.parallel import gather, map  # noqa: A004
from orchestrator.sdk.past_runs import past_runs, timeline
from orchestrator.sdk.slo_tags import slo_tags
from orchestrator.sdk.steps import step, tool
from orchestrator.sdk.time_limits import has_deadline, remaining, within
from orchestrator.settings import Settings, read_settings
from orchestrator.tools.agent import agent
from orchestrator.tools.agent_result import AgentResult
from orchestrator.tools.mcp_tools import McpTool, mcp_tools
from orchestrator.tools.tool_uses import ToolUse
from orchestrator.wiring import open_runtime
from serving.generation import Message, Token, ToolCall
from serving.images import Image
from store.payload_codec import PayloadCodec

__all__ = [
    "AgentResult",
    "Answer",
    "AnswerRefused",
    "ApplyBusy",
    "ApplyFailed",
    "ApplyUnfinished",
    "ArgumentsDiffer",
    "BaseChanged",
    "BaseRefused",
    "Budget",
    "BudgetExceeded",
    "ChangeSet",
    "Checkpoint",
    "Choice",
    "CommandFailed",
    "Completed",
    "Conflict",
    "DeadlineExceeded",
    "DeadlineInfeasible",
    "EffectsAfterFork",
    "Flow",
    "FlowChanged",
    "Happened",
    "Image",
    "InvalidCron",
    "InvalidDuration",
    "InvalidQueueOption",
    "InvalidResolution",
    "InvalidRunId",
    "InvalidSettings",
    "McpServerFailed",
    "McpTool",
    "MergeConflict",
    "MergeResult",
    "Message",
    "ModelInfo",
    "NoForkPoint",
    "NoOpenQuestion",
    "NoWorkspace",
    "NotRevertible",
    "OrchestrateError",
    "OutcomeNotRecorded",
    "OutcomeUnknown",
    "OutsideRun",
    "OutsideWorkspace",
    "PackageShadowed",
    "PayloadCodec",
    "Question",
    "ResultNotSerialisable",
    "ResultUnreadable",
    "RunAlreadyEnded",
    "RunCancelled",
    "RunEnded",
    "RunHandle",
    "RunInfo",
    "RunInterrupted",
    "RunNotForkable",
    "RunNotResumable",
    "RunResult",
    "RunStatus",
    "RunUsage",
    "Runtime",
    "RuntimeDraining",
    "SandboxFailed",
    "Service",
    "ServiceFailed",
    "Settings",
    "ShellBusy",
    "StageReport",
    "StateLost",
    "StepFailed",
    "Submitted",
    "Timeline",
    "Token",
    "ToolCall",
    "ToolCallsInvalid",
    "ToolFailed",
    "ToolUse",
    "UnknownEngine",
    "UnknownModel",
    "Worker",
    "Workspace",
    "WorkspaceBusy",
    "WorkspaceClosed",
    "WorkspaceFull",
    "WorkspaceLimits",
    "WouldBlock",
    "WrongLoop",
    "agent",
    "best_so_far",
    "budget",
    "choose",
    "current_workspace",
    "embed",
    "flow",
    "gather",
    "has_deadline",
    "input_required",
    "llm",
    "llm_stream",
    "map",
    "mcp_tools",
    "model_info",
    "now",
    "open_runtime",
    "past_runs",
    "random",
    "read_settings",
    "remaining",
    "run_id",
    "slo_tags",
    "step",
    "timeline",
    "tool",
    "uuid",
    "within",
    "workspace",
]
