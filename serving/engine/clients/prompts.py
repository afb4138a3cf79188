"""Tokenizes prompts outside the engine's thread; refuses early what can never fit."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from serving.engine.clients.chat_turns import openai_tool, template_turn
from serving.engine.setup.model_loading import error_summary
from serving.errors import InvalidRequest, PromptTooLong, ServingError
from serving.generation import GenerationRequest

if TYPE_CHECKING:
    from vllm.tokenizers import TokenizerLike

LONG_CHARS = 30_000
"""A prompt with more characters is long: tokenizing this many takes about 50 ms."""

CHARS_PER_TURN = 30
"""Characters that a chat template is assumed to add to a turn."""


class Prompts:
    """Tokenizes an engine's prompts: short ones on one thread, long ones on another.

    So no short prompt waits for a long one. Fast tokenizers hold their truncation and padding as
    state, so two threads must not share one (vLLM's own pools hold copies too). The thread for long
    prompts copies the tokenizer at its first prompt.
    """

    def __init__(self) -> None:
        # Never shut down, so that a call during the engine's close gets EngineClosed. The idle
        # threads end with this object.
        self._short = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="tokenize-long")
        self._copy: TokenizerLike | None = None
        self._max_token_chars: int | None = None

    @property
    def tokenizer_thread(self) -> ThreadPoolExecutor:
        """The thread on which the engine's tokenizer may be used."""
        return self._short

    def thread_for(self, request: GenerationRequest) -> ThreadPoolExecutor:
        """The thread on which `tokens` must be called for this request."""
        return self._long if is_long(request) else self._short

    def tokens(
        self, tokenizer: TokenizerLike, request: GenerationRequest, *, limit_tokens: int
    ) -> list[int]:
        """A request's prompt as token ids.

        Args:
            limit_tokens: the model's context; a prompt must be shorter.
        Raises:
            PromptTooLong: the prompt is known to be too long from its number of characters. The
                error's number of tokens is extrapolated from the prompt's beginning.
            InvalidRequest: the tokenizer or the chat template raises an error.
        """
        try:
            if is_long(request):
                tokenizer = self._copy_of(tokenizer)
            text, is_chat = prompt_text(tokenizer, request)
            if len(text) > LONG_CHARS:
                if self._max_token_chars is None:
                    self._max_token_chars = max(map(len, tokenizer.get_vocab()))
                if min_tokens(text, self._max_token_chars) >= limit_tokens:
                    begin_tokens = len(tokenizer.encode(text[:LONG_CHARS]))
                    prompt_tokens = max(begin_tokens * len(text) // LONG_CHARS, limit_tokens)
                    raise PromptTooLong(request.request_id, prompt_tokens, limit_tokens - 1)
            if is_chat:  # the template has added the special tokens
                return list(tokenizer.encode(text, add_special_tokens=False))
            return list(tokenizer.encode(text))
        except ServingError:
            raise
        except Exception as error:  # tokenizers and chat templates raise errors of any class
            raise InvalidRequest(request.request_id, error_summary(error)) from error

    def choice_tokens(self, tokenizer: TokenizerLike, request: GenerationRequest) -> list[int]:
        """The first token of each of a request's choices.

        Raises:
            InvalidRequest: two choices begin with the same token.
        """
        encoded = [tokenizer.encode(text, add_special_tokens=False) for text in request.choices]
        first = [tokens[0] for tokens in encoded]
        if len(set(first)) < len(first):
            reason = "two of the choices begin with the same token: begin them with other letters"
            raise InvalidRequest(request.request_id, reason)
        return first

    def _copy_of(self, tokenizer: TokenizerLike) -> TokenizerLike:
        """The tokenizer for long prompts; copied on the thread that uses the original."""
        if self._copy is None:
            self._copy = self._short.submit(copy.deepcopy, tokenizer).result()
        return self._copy


def is_long(request: GenerationRequest) -> bool:
    """Whether a prompt belongs on the thread for long prompts."""
    if isinstance(request.prompt, str):
        return len(request.prompt) > LONG_CHARS
    chars = sum(len(turn.text) + CHARS_PER_TURN for turn in request.prompt)
    return chars > LONG_CHARS


def prompt_text(tokenizer: TokenizerLike, request: GenerationRequest) -> tuple[str, bool]:
    """The text to tokenize, and whether a chat template produced it."""
    if isinstance(request.prompt, str):
        return request.prompt, False
    turns = [template_turn(turn) for turn in request.prompt]
    tools = {"tools": [openai_tool(tool) for tool in request.tools]} if request.tools else {}
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **tools)
    assert isinstance(text, str), "a template without tokenizing returns text"
    return text, True


def min_tokens(text: str, max_token_chars: int) -> int:
    """A lower bound on the number of tokens of a text.

    Guaranteed for byte-level BPE. There a token of n characters in the vocabulary stands for n
    bytes: at most n characters of text, or 1.5 n if the tokenizer normalises to NFC (three
    characters in two bytes). White space does not count, because special tokens may absorb the
    white space next to them. Other tokenizers may drop more characters, or map unknown text to one
    token. For them this is a heuristic; text in a natural language has far more tokens.

    Args:
        max_token_chars: characters of the longest token in the vocabulary.
    """
    if len(text) <= 2 * max_token_chars:  # typical; avoids the count
        return 0
    chars = sum(map(len, text.split()))
    return -(-chars // (2 * max_token_chars))
