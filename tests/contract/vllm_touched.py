"""What we touch of vLLM's inside, name by name: none of it is a public interface."""

from __future__ import annotations

from typing import NamedTuple

from tests.engine.vllm_reach import SCHEDULER

REQUEST = "vllm.v1.request.Request"
STEP = "vllm.v1.core.sched.output.SchedulerOutput"
BLOCKS = "vllm.v1.core.block_pool.BlockPool"
ENGINE_OUTPUT = "vllm.v1.engine.EngineCoreOutput"
ENGINE_OUTPUTS = "vllm.v1.engine.EngineCoreOutputs"
PAUSE_STATE = "vllm.v1.core.sched.interface.PauseState"
LLM = "vllm.v1.engine.llm_engine.LLMEngine"
TOKENIZER = "vllm.tokenizers.protocol.TokenizerLike"

OVERRIDDEN = {
    "__init__",
    "_free_request",
    "_handle_stopped_request",
    "_preempt_request",
    "add_request",
    "has_requests",
    "schedule",
    "set_pause_state",
    "update_from_output",
}
"""vLLM's methods that our scheduler wraps: each calls vLLM's own."""

REPLACED = {"waiting", "policy", "max_num_scheduled_tokens"}
"""vLLM's attributes that our scheduler sets."""

OF_OUR_SCHEDULER = ("request_lifecycle", "placement", "scheduler")
"""The modules whose `self` is vLLM's scheduler."""

READ = {
    "_handle_blocked_waiting_request",
    "_inflight_prefills",
    "_is_blocked_waiting_status",
    "block_size",
    "connector",
    "current_step",
    "finish_requests",
    "get_num_unfinished_requests",
    "kv_cache_config",
    "kv_cache_manager",
    "kv_holding_waiting",
    "lora_config",
    "max_num_active_reqs",
    "num_lookahead_tokens",
    "num_spec_tokens",
    "num_waiting_for_streaming_input",
    "pause_state",
    "requests",
    "requires_kv_delivery",
    "running",
    "scheduler_config",
    "vllm_config",
}
"""What else it uses of vLLM's scheduler."""


class Touch(NamedTuple):
    """In a module, what stands behind an expression, and what is touched of it."""

    module: str
    expression: str
    owner: str
    names: set[str]


TOUCHED = [
    Touch("answers", "RequestOutputKind", "vllm.sampling_params.RequestOutputKind", {"DELTA"}),
    Touch(
        "answers",
        "output",
        "vllm.outputs.RequestOutput",
        {"finished", "num_cached_tokens", "outputs", "prompt_token_ids"},
    ),
    Touch(
        "answers",
        "part",
        "vllm.outputs.CompletionOutput",
        {"finish_reason", "stop_reason", "text", "token_ids"},
    ),
    Touch("answers", "params", "vllm.sampling_params.SamplingParams", {"extra_args"}),
    Touch("counting_scheduler", "output", STEP, {"num_scheduled_tokens"}),
    Touch("counting_scheduler", "request", REQUEST, {"num_computed_tokens", "request_id"}),
    Touch("counting_scheduler", "self", SCHEDULER, {"requests"}),
    Touch("counting_scheduler", "self.requests[request_id]", REQUEST, {"num_computed_tokens"}),
    Touch("embedded", "LLMEngine", LLM, {"from_engine_args"}),
    Touch(
        "embedded",
        "llm",
        LLM,
        {
            "abort_request",
            "add_request",
            "engine_core",
            "get_tokenizer",
            "has_unfinished_requests",
            "model_config",
            "step",
        },
    ),
    Touch(
        "embedded",
        "llm.engine_core",
        "vllm.v1.engine.core_client.InprocClient",
        {"engine_core", "shutdown"},
    ),
    Touch(
        "embedded", "llm.engine_core.engine_core", "vllm.v1.engine.core.EngineCore", {"scheduler"}
    ),
    Touch("embedded", "llm.model_config", "vllm.config.ModelConfig", {"max_model_len"}),
    Touch("embedded", "output", "vllm.outputs.RequestOutput", {"finished", "request_id"}),
    Touch("request_lifecycle", "FinishReason", "vllm.v1.engine.FinishReason", {"ABORT"}),
    Touch(
        "request_lifecycle",
        "RequestStatus",
        "vllm.v1.request.RequestStatus",
        {
            "FINISHED_ABORTED",
            "FINISHED_LENGTH_CAPPED",
            "FINISHED_REPETITION",
            "FINISHED_STOPPED",
            "WAITING_FOR_STREAMING_REQ",
        },
    ),
    Touch("request_lifecycle", "batch", ENGINE_OUTPUTS, {"outputs"}),
    Touch("request_lifecycle", "known", REQUEST, {"is_finished", "request_id"}),
    Touch("request_lifecycle", "output", ENGINE_OUTPUT, {"new_token_ids", "request_id"}),
    Touch(
        "request_lifecycle",
        "outputs.setdefault(client_index, EngineCoreOutputs())",
        ENGINE_OUTPUTS,
        {"outputs"},
    ),
    Touch("request_lifecycle", "params", "vllm.sampling_params.SamplingParams", {"stop"}),
    Touch(
        "request_lifecycle",
        "request",
        REQUEST,
        {
            "client_index",
            "num_computed_tokens",
            "num_output_tokens",
            "num_prompt_tokens",
            "request_id",
            "sampling_params",
            "status",
            "take_events",
            "trace_headers",
        },
    ),
    Touch(
        "cpu_worker",
        "self",
        "vllm.v1.worker.cpu_model_runner.CPUModelRunner",
        {"discard_request_mask", "input_batch"},
    ),
    Touch(
        "cpu_worker",
        "super()",
        "vllm.v1.worker.cpu_model_runner.CPUModelRunner",
        {"_bookkeeping_sync", "_sample"},
    ),
    Touch("cpu_worker", "super()", "vllm.v1.worker.cpu_worker.CPUWorker", {"init_device"}),
    Touch("cpu_worker", "self", "vllm.v1.worker.cpu_worker.CPUWorker", {"model_runner"}),
    Touch("cpu_worker", "self.discard_request_mask", "vllm.v1.utils.CpuGpuBuffer", {"np"}),
    Touch(
        "cpu_worker",
        "batch",
        "vllm.v1.worker.gpu_input_batch.InputBatch",
        {"generators", "num_reqs"},
    ),
    Touch(
        "prefill_throttling",
        "config",
        "vllm.config.SchedulerConfig",
        {"long_prefill_token_threshold"},
    ),
    Touch("prefill_throttling", "request", REQUEST, {"next_decode_eligible_step"}),
    Touch("plan_queue", "request", REQUEST, {"request_id"}),
    Touch("prompts", "tokenizer", TOKENIZER, {"apply_chat_template", "encode", "get_vocab"}),
    Touch(
        "plan_queue",
        "self",
        "vllm.v1.core.sched.request_queue.RequestQueue",
        {"add_request", "remove_requests"},
    ),
    Touch(
        "prefix_cache",
        "manager",
        "vllm.v1.core.kv_cache_manager.KVCacheManager",
        {"coordinator", "prefix_cache_lookup_enabled"},
    ),
    Touch(
        "prefix_cache",
        "manager.coordinator",
        "vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator",
        {"find_longest_cache_hit"},
    ),
    Touch("prefix_cache", "block", "vllm.v1.core.kv_cache_utils.KVCacheBlock", {"ref_cnt"}),
    Touch("prefix_cache", "request", REQUEST, {"block_hashes", "num_tokens"}),
    Touch("replaying_engine", "cache", "vllm.config.CacheConfig", {"block_size", "num_gpu_blocks"}),
    Touch(
        "replaying_engine",
        "llm",
        LLM,
        {"get_tokenizer", "has_unfinished_requests", "model_config", "vllm_config"},
    ),
    Touch("replaying_engine", "llm.get_tokenizer()", TOKENIZER, {"eos_token_id"}),
    Touch(
        "replaying_engine",
        "llm.model_config",
        "vllm.config.ModelConfig",
        {"get_vocab_size", "max_model_len"},
    ),
    Touch(
        "replaying_engine",
        "llm.vllm_config",
        "vllm.config.VllmConfig",
        {"cache_config", "scheduler_config"},
    ),
    Touch(
        "replaying_engine",
        "params",
        "vllm.sampling_params.SamplingParams",
        {"logit_bias", "min_tokens"},
    ),
    Touch(
        "replaying_engine",
        "scheduling",
        "vllm.config.SchedulerConfig",
        {"max_num_batched_tokens", "max_num_seqs"},
    ),
    Touch("placement", "PauseState", PAUSE_STATE, {"UNPAUSED"}),
    Touch(
        "placement",
        "SchedulingPolicy",
        "vllm.v1.core.sched.request_queue.SchedulingPolicy",
        {"FCFS"},
    ),
    Touch(
        "placement",
        "each",
        REQUEST,
        {"num_computed_tokens", "num_tokens_with_spec"},
    ),
    Touch(
        "placement",
        "self.kv_cache_config",
        "vllm.v1.kv_cache_interface.KVCacheConfig",
        {"kv_cache_groups"},
    ),
    Touch("placement", "output", STEP, {"total_num_scheduled_tokens"}),
    Touch(
        "placement",
        "request",
        REQUEST,
        {
            "is_prefill_chunk",
            "lora_request",
            "next_decode_eligible_step",
            "num_computed_tokens",
            "num_tokens",
            "request_id",
            "status",
        },
    ),
    Touch(
        "placement",
        "manager",
        "vllm.v1.core.kv_cache_manager.KVCacheManager",
        {"block_pool", "watermark_blocks"},
    ),
    Touch("placement", "manager.block_pool", BLOCKS, {"get_num_free_blocks"}),
    Touch("placement", "best", REQUEST, {"request_id"}),
    Touch("placement", "lora", "vllm.lora.request.LoRARequest", {"lora_int_id"}),
    Touch("placement", "self.lora_config", "vllm.config.LoRAConfig", {"max_loras"}),
    Touch("placement", "waits", REQUEST, {"request_id"}),
    Touch(
        "placement",
        "self.scheduler_config",
        "vllm.config.SchedulerConfig",
        {"long_prefill_token_threshold"},
    ),
    Touch("scheduler", "PauseState", PAUSE_STATE, {"UNPAUSED"}),
    Touch("scheduler", "blocks", BLOCKS, {"get_num_free_blocks", "num_gpu_blocks"}),
    Touch(
        "scheduler",
        "new",
        "vllm.v1.core.sched.output.NewRequestData",
        {"num_computed_tokens", "req_id"},
    ),
    Touch(
        "scheduler",
        "output",
        STEP,
        {"num_scheduled_tokens", "scheduled_new_reqs", "scheduled_spec_decode_tokens"},
    ),
    Touch("scheduler", "each", REQUEST, {"is_prefill_chunk", "request_id"}),
    Touch("scheduler", "r", REQUEST, {"request_id"}),
    Touch("scheduler", "request", REQUEST, {"request_id"}),
    Touch(
        "scheduler",
        "self.kv_cache_manager",
        "vllm.v1.core.kv_cache_manager.KVCacheManager",
        {"block_pool"},
    ),
    Touch("scheduler", "self.requests[new.req_id]", REQUEST, {"num_preemptions"}),
    Touch(
        "scheduler",
        "self.scheduler_config",
        "vllm.config.SchedulerConfig",
        {"disable_chunked_mm_input", "enable_chunked_prefill", "long_prefill_token_threshold"},
    ),
    Touch("scheduler", "self.vllm_config", "vllm.config.VllmConfig", {"additional_config"}),
    Touch("server", "engine", "vllm.v1.engine.async_llm.AsyncLLM", {"generate", "shutdown"}),
    Touch("server", "failure", "vllm.exceptions.GenerationError", {"status_code"}),
    Touch(
        "server",
        "make_arg_parser(FlexibleArgumentParser())",
        "vllm.utils.argparse_utils.FlexibleArgumentParser",
        {"parse_args"},
    ),
    Touch("server", "output", "vllm.outputs.RequestOutput", {"outputs"}),
    Touch("server", "part", "vllm.outputs.CompletionOutput", {"finish_reason", "stop_reason"}),
    Touch(
        "server",
        "running",
        "vllm.v1.engine.output_processor.OutputProcessor",
        {"propagate_error"},
    ),
    Touch("server", "self._engine", "vllm.v1.engine.async_llm.AsyncLLM", {"output_processor"}),
    Touch(
        "request_ledger",
        "each",
        REQUEST,
        {"max_tokens", "num_computed_tokens", "num_output_tokens", "num_prompt_tokens"},
    ),
    Touch("request_ledger", "last", REQUEST, {"request_id"}),
    Touch(
        "request_ledger",
        "made",
        "vllm.v1.outputs.ModelRunnerOutput",
        {"req_id_to_index", "sampled_token_ids"},
    ),
    Touch(
        "request_ledger",
        "output",
        STEP,
        {
            "num_scheduled_tokens",
            "scheduled_spec_decode_tokens",
            "total_num_scheduled_tokens",
        },
    ),
    Touch("request_ledger", "params", "vllm.sampling_params.SamplingParams", {"extra_args"}),
    Touch(
        "request_ledger",
        "request",
        REQUEST,
        {
            "num_computed_tokens",
            "num_output_tokens",
            "num_prompt_tokens",
            "priority",
            "request_id",
            "sampling_params",
        },
    ),
    Touch("request_ledger", "self._rows[place]", REQUEST, {"num_prompt_tokens"}),
    Touch("virtual_engine", "FinishReason", "vllm.v1.engine.FinishReason", {"LENGTH", "STOP"}),
    Touch("virtual_engine", "RequestStatus", "vllm.v1.request.RequestStatus", {"FINISHED_ABORTED"}),
    Touch(
        "virtual_engine",
        "_engine_arguments(config)",
        "vllm.engine.arg_utils.EngineArgs",
        {"create_engine_config"},
    ),
    Touch("virtual_engine", "batch", ENGINE_OUTPUTS, {"outputs"}),
    Touch(
        "virtual_engine", "output", ENGINE_OUTPUT, {"finish_reason", "request_id", "stop_reason"}
    ),
    Touch(
        "virtual_engine",
        "request",
        REQUEST,
        {"num_computed_tokens", "num_output_tokens", "num_tokens"},
    ),
    Touch(
        "virtual_engine",
        "self.scheduler.kv_cache_manager",
        "vllm.v1.core.kv_cache_manager.KVCacheManager",
        {"block_pool"},
    ),
    Touch(
        "virtual_engine",
        "self.scheduler.kv_cache_manager.block_pool",
        BLOCKS,
        {"get_num_free_blocks"},
    ),
    Touch(
        "virtual_engine",
        "self._step",
        STEP,
        {"num_scheduled_tokens", "scheduled_spec_decode_tokens"},
    ),
    Touch("virtual_engine", "step", STEP, {"num_scheduled_tokens", "scheduled_spec_decode_tokens"}),
    Touch("virtual_engine", "vllm_config", "vllm.config.VllmConfig", {"cache_config"}),
    Touch(
        "virtual_engine",
        "vllm_config.cache_config",
        "vllm.config.CacheConfig",
        {"num_gpu_blocks", "prefix_caching_hash_algo"},
    ),
    Touch(
        "virtual_engine",
        "self.scheduler",
        SCHEDULER,
        {
            "add_request",
            "finish_requests",
            "has_requests",
            "kv_cache_manager",
            "requests",
            "schedule",
            "update_draft_token_ids",
            "update_from_output",
        },
    ),
]

PYTHONS = {
    ("embedded", "self._ready"),  # a future
    ("scheduler", "logger"),
    ("server", "listening"),  # a socket
}
"""What vLLM gives us that is Python's own, or is only told of vLLM's objects."""

OURS_TOO = {"self", "self.scheduler", "self.waiting"}
"""Objects of classes of ours that derive from vLLM's: most of what is touched of them is ours."""
