"""Checks the structured output that a request asks for, before vLLM compiles it.

vLLM compiles it twice: where a request is validated, which blocks all requests of that process, and
in the engine core; neither time within limits. With `StructuredOutputCheck` a request is refused
by bounds, then by a trial in another process; vLLM's validation takes over the trial's outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serving.engine.structured_output.bounds import choices_fault, json_fault, text_fault
from serving.engine.structured_output.specification import Specification, Tokenizer
from serving.engine.structured_output.trial_process import TrialNotPossible, TrialProcess
from serving.errors import InvalidRequest, RequestFailed

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.tokenizers import TokenizerLike


class StructuredOutputCheck:
    """Checks requests of one engine, which runs in this process or in another.

    While it exists, vLLM's validation in this process skips compiling what a trial has compiled.
    """

    def __init__(self, config: VllmConfig, tokenizer: TokenizerLike | None) -> None:
        settings = config.structured_outputs_config
        assert settings.backend == "guidance", "trials are done with that backend's compiler"
        self._any_whitespace = not settings.disable_any_whitespace
        num_tokens = config.model_config.get_vocab_size()
        self._trials = TrialProcess(lambda: _fast_tokenizer(tokenizer, num_tokens))
        self._restore = _replace_validation(self)

    async def check(self, structured: StructuredOutputsParams | None, request_id: str = "") -> None:
        """Raise if a request's structured output exceeds a bound, or cannot be compiled.

        A grammar in another syntax than Lark's is replaced by its translation.

        Raises:
            InvalidRequest: the reason says what to change.
            RequestFailed: it cannot be tried, for no fault of the request.
        """
        if structured is None:
            return
        fault = _bounds_fault(structured)
        specification = None if fault else self._specification(structured)
        if specification is not None:
            try:
                trial = await self._trials.compile(specification)
            except TrialNotPossible as error:
                reason = f"its structured output cannot be tried: {error}"
                raise RequestFailed(request_id, reason) from error
            fault = trial.fault
            if trial.lark is not None:
                structured.grammar = trial.lark
        if fault is not None:
            raise InvalidRequest(request_id, f"structured output: {fault}")

    def is_compiled(self, params: SamplingParams) -> bool:
        """Whether a trial has compiled a request's structured output."""
        structured = params.structured_outputs
        specification = structured and self._specification(structured)
        trial = self._trials.outcome(specification) if specification else None
        return trial is not None and trial.fault is None

    def close(self) -> None:
        """End the trial's process, and restore vLLM's validation."""
        self._restore()
        self._trials.close()

    def _specification(self, structured: StructuredOutputsParams) -> Specification | None:
        """None if it asks for nothing, or vLLM rejects it without compiling."""
        from vllm.v1.structured_output.request import get_structured_output_key

        try:
            kind, text = get_structured_output_key(structured)
        except (TypeError, ValueError):
            return None
        if kind.name != "JSON_OBJECT" and not text.strip():
            return None
        return Specification(kind.name.lower(), text, self._any_whitespace)


def _bounds_fault(structured: StructuredOutputsParams) -> str | None:
    faults = (
        structured.json is not None and json_fault(structured.json),
        structured.structural_tag is not None and json_fault(structured.structural_tag),
        structured.choice is not None and choices_fault(structured.choice),
        structured.regex is not None and text_fault(structured.regex),
        structured.grammar is not None and text_fault(structured.grammar),
    )
    return next((fault for fault in faults if fault), None)


def _fast_tokenizer(tokenizer: Any, num_tokens: int) -> Tokenizer | None:
    """The tokenizer as llguidance reads it; None for one that is not Hugging Face's fast kind."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    # Padding and truncation do not matter here: tokens are only looked up.
    return Tokenizer(backend.to_str(), max(num_tokens, len(tokenizer)), tokenizer.eos_token_id)


def _replace_validation(check: StructuredOutputCheck) -> Any:
    """Let vLLM's validation skip what a trial has compiled; returns a function that undoes it.

    The validation of structural tags by xgrammar is removed: it unrolls counts where a request is
    parsed, before `check` sees it, and xgrammar is not the backend.
    """
    import vllm.v1.structured_output.backend_guidance as backend_guidance
    import vllm.v1.structured_output.backend_xgrammar as backend_xgrammar

    by_guidance = backend_guidance.validate_guidance_grammar
    by_xgrammar = backend_xgrammar.validate_xgrammar_grammar

    def validate(params: SamplingParams, tokenizer: Any = None) -> None:
        if not check.is_compiled(params):
            by_guidance(params, tokenizer)

    def restore() -> None:
        backend_guidance.validate_guidance_grammar = by_guidance
        backend_xgrammar.validate_xgrammar_grammar = by_xgrammar

    backend_guidance.validate_guidance_grammar = validate
    backend_xgrammar.validate_xgrammar_grammar = lambda params: None
    return restore
