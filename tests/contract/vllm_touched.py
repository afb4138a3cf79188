"""Every attribute of vLLM's internals that we use, by class; none is a public interface."""

from __future__ import annotations

SCHEDULER = "vllm.v1.core.sched.scheduler.Scheduler"

OVERRIDDEN = {
    "__init__",
    "_free_request",
    "_handle_stopped_request",
    "_preempt_request",
    "add_request",
    "has_requests",
    "schedule",
    "set_pause_state",
    "shutdown",
    "update_from_output",
}
"""Methods of vLLM's scheduler that ours overrides; each calls vLLM's own."""

REPLACED = {"waiting", "policy", "max_num_scheduled_tokens"}
"""Attributes of vLLM's scheduler that ours sets."""

_NAMES = {
    "tokenizers.Tokenizer": "to_str",
    "vllm.config.CacheConfig": """
        block_size enable_prefix_caching num_gpu_blocks prefix_caching_hash_algo""",
    "vllm.config.LoRAConfig": "max_loras",
    "vllm.config.ModelConfig": "get_vocab_size hf_config max_model_len model",
    "vllm.config.scheduler.SchedulerConfig": """
        disable_chunked_mm_input enable_chunked_prefill long_prefill_token_threshold
        max_num_batched_tokens max_num_seqs""",
    "vllm.config.vllm.VllmConfig": """
        additional_config cache_config compute_hash model_config scheduler_config
        structured_outputs_config""",
    "vllm.config.StructuredOutputsConfig": "backend disable_any_whitespace",
    "vllm.engine.arg_utils.EngineArgs": "create_engine_config",
    "vllm.entrypoints.generate.base.protocol.DeltaMessage": "content tool_calls",
    "vllm.entrypoints.generate.base.protocol.ExtractedToolCallInformation": """
        content tool_calls tools_called""",
    "vllm.entrypoints.generate.base.protocol.FunctionCall": "arguments name",
    "vllm.entrypoints.generate.base.protocol.FunctionDefinition": "model_dump",
    "vllm.entrypoints.generate.base.protocol.ToolCall": "function id",
    "vllm.entrypoints.openai.chat_completion.protocol.ChatCompletionRequest": """
        extract_structured_outputs response_format skip_special_tokens
        spaces_between_special_tokens structured_outputs tool_choice tools""",
    "vllm.entrypoints.openai.chat_completion.protocol.ChatCompletionNamedToolChoiceParam": """
        function type""",
    "vllm.entrypoints.openai.responses.protocol.ResponsesRequest": """
        extract_structured_outputs structured_outputs text tool_choice tools""",
    "vllm.exceptions.GenerationError": "status_code",
    "vllm.logprobs.Logprob": "decoded_token logprob",
    "vllm.lora.request.LoRARequest": "lora_int_id",
    "vllm.outputs.CompletionOutput": "finish_reason logprobs stop_reason text token_ids",
    "vllm.outputs.RequestOutput": """
        finished num_cached_tokens outputs prompt_token_ids request_id""",
    "vllm.platforms.interface.Platform": "get_device_name",
    "vllm.parser.engine.adapters.ParserEngineToolAdapter": "skip_reasoning_parsing",
    "vllm.renderers.base.BaseRenderer": "clear_mm_cache_async",
    "vllm.renderers.hf.HfRenderer": "render_messages_async tokenizer",
    "vllm.renderers.params.ChatParams": "chat_template_kwargs response_format tool_choice",
    "vllm.sampling_params.RequestOutputKind": "DELTA",
    "vllm.sampling_params.SamplingParams": """
        clone extra_args logit_bias min_tokens output_kind skip_special_tokens
        spaces_between_special_tokens stop structured_outputs""",
    "vllm.sampling_params.StructuredOutputsParams": """
        choice grammar json json_object regex structural_tag""",
    "vllm.tokenizers.protocol.TokenizerLike": """
        apply_chat_template encode eos_token_id get_vocab""",
    "vllm.tool_parsers.abstract_tool_parser.ToolParser": """
        adjust_request engine_based_streaming extract_tool_calls extract_tool_calls_streaming""",
    "vllm.tool_parsers.abstract_tool_parser.ToolParserManager": """
        get_tool_parser list_registered register_module""",
    "vllm.utils.argparse_utils.FlexibleArgumentParser": "parse_args",
    "vllm.v1.core.block_pool.BlockPool": "get_num_free_blocks num_gpu_blocks",
    "vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator": "find_longest_cache_hit",
    "vllm.v1.core.kv_cache_manager.KVCacheManager": """
        block_pool coordinator prefix_cache_lookup_enabled watermark_blocks""",
    "vllm.v1.core.kv_cache_utils.KVCacheBlock": "ref_cnt",
    "vllm.v1.core.sched.interface.PauseState": "UNPAUSED",
    "vllm.v1.core.sched.output.NewRequestData": "num_computed_tokens req_id",
    "vllm.v1.core.sched.output.SchedulerOutput": """
        num_scheduled_tokens scheduled_new_reqs scheduled_spec_decode_tokens
        total_num_scheduled_tokens""",
    "vllm.v1.core.sched.request_queue.SchedulingPolicy": "FCFS",
    SCHEDULER: """
        _handle_blocked_waiting_request _inflight_prefills _is_blocked_waiting_status block_size
        cache_config connector current_step finish_requests get_num_unfinished_requests
        get_request_counts kv_cache_config kv_cache_manager kv_holding_waiting log_stats
        lora_config max_model_len max_num_active_reqs num_lookahead_tokens num_spec_tokens
        num_waiting_for_streaming_input pause_state prev_step_scheduled_req_ids requests
        requires_kv_delivery running scheduler_config update_draft_token_ids vllm_config """
    + " ".join(OVERRIDDEN | REPLACED),
    "vllm.v1.engine.EngineCoreEventType": "SCHEDULED",
    "vllm.v1.engine.EngineCoreOutput": """
        finish_reason new_token_ids request_id stop_reason""",
    "vllm.v1.engine.EngineCoreOutputs": "outputs",
    "vllm.v1.engine.FinishReason": "ABORT LENGTH STOP",
    "vllm.v1.engine.async_llm.AsyncLLM": """
        _run_output_handler dead_error encode engine_core errored generate get_tokenizer log_stats
        model_config output_handler output_processor renderer shutdown vllm_config""",
    "vllm.v1.engine.core.EngineCore": "scheduler",
    "vllm.v1.engine.core_client.AsyncMPClient": "shutdown",
    "vllm.v1.engine.core_client.EngineCoreClient": "make_async_mp_client",
    "vllm.v1.engine.core_client.InprocClient": "engine_core shutdown",
    "vllm.v1.engine.llm_engine.LLMEngine": """
        abort_request add_request engine_core from_engine_args get_tokenizer
        has_unfinished_requests model_config step vllm_config""",
    "vllm.v1.engine.output_processor.OutputProcessor": """
        abort_requests propagate_error request_states""",
    "vllm.v1.executor.abstract.Executor": "get_class",
    "vllm.v1.kv_cache_interface.KVCacheConfig": "kv_cache_groups",
    "vllm.v1.metrics.stats.RequestStateStats": """
        first_token_ts last_token_ts num_generation_tokens num_preemptions queued_ts
        scheduled_ts""",
    "vllm.v1.outputs.ModelRunnerOutput": "req_id_to_index sampled_token_ids",
    "vllm.v1.request.Request": """
        append_output_token_ids block_hashes client_index is_finished is_prefill_chunk lora_request
        max_tokens next_decode_eligible_step num_computed_tokens num_output_tokens num_preemptions
        num_prompt_tokens num_tokens num_tokens_with_spec priority record_event request_id
        sampling_params status take_events trace_headers""",
    "vllm.v1.request.RequestStatus": """
        FINISHED_ABORTED FINISHED_LENGTH_CAPPED FINISHED_REPETITION FINISHED_STOPPED
        WAITING_FOR_STREAMING_REQ""",
    "vllm.v1.utils.CpuGpuBuffer": "np",
    "vllm.v1.worker.cpu_model_runner.CPUModelRunner": """
        _bookkeeping_sync _sample discard_request_mask input_batch""",
    "vllm.v1.worker.cpu_worker.CPUWorker": "init_device model_runner",
    "vllm.v1.worker.gpu_input_batch.InputBatch": "generators num_reqs",
}

TOUCHED: dict[str, set[str]] = {owner: set(names.split()) for owner, names in _NAMES.items()}
"""Class of vLLM -> its attributes that we read, call, set or override."""
