"""A prompt -> its token ids, beside the thread that steps; what can never fit is not read."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from serving.engine.setup.model_loading import telling_line
from serving.errors import InvalidRequest, PromptTooLong, ServingError
from serving.generation import GenerationRequest

if TYPE_CHECKING:
    from vllm.tokenizers import TokenizerLike

LONG_CHARS = 30_000
"""From how many characters on a prompt is long: tokenizing that many takes some 50 ms."""

CHARS_PER_TURN = 30
"""What a chat template is taken to add to a turn."""


class Prompts:
    """Tokenizes an engine's prompts: short ones on one thread, long ones on another.

    So no short prompt waits for a long one. Fast tokenizers keep how they truncate and pad as
    state, so that no two threads may share one: the long prompts have a copy, made when the first
    of them comes, as vLLM's own pools of tokenizers hold copies.
    """

    def __init__(self) -> None:
        # Never shut down, so that a caller who comes while the engine closes meets EngineClosed;
        # the idle threads end with this object.
        self._short = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="tokenize-long")
        self._copy: TokenizerLike | None = None
        self._longest_chars: int | None = None

    def thread_for(self, request: GenerationRequest) -> ThreadPoolExecutor:
        """The thread on which `tokens` may be called for a request."""
        return self._long if is_long(request) else self._short

    def tokens(
        self, tokenizer: TokenizerLike, request: GenerationRequest, *, limit_tokens: int
    ) -> list[int]:
        """A request's prompt as token ids.

        Args:
            limit_tokens: the model's context, of which a prompt must leave some.
        Raises:
            PromptTooLong: its characters alone say that it cannot fit. The tokens that the error
                counts are then what its beginning leads to expect.
            InvalidRequest: the tokenizer, or the chat template, cannot take it.
        """
        try:
            if is_long(request):
                tokenizer = self._copy_of(tokenizer)
            text, is_chat = written(tokenizer, request)
            if len(text) > LONG_CHARS:
                if self._longest_chars is None:
                    self._longest_chars = max(map(len, tokenizer.get_vocab()))
                if least_tokens(text, self._longest_chars) >= limit_tokens:
                    begin = len(tokenizer.encode(text[:LONG_CHARS]))
                    expected = max(begin * len(text) // LONG_CHARS, limit_tokens)
                    raise PromptTooLong(request.request_id, expected, limit_tokens - 1)
            if is_chat:  # its template wrote the special tokens
                return list(tokenizer.encode(text, add_special_tokens=False))
            return list(tokenizer.encode(text))
        except ServingError:
            raise
        except Exception as error:  # tokenizers and chat templates raise what they like
            raise InvalidRequest(request.request_id, telling_line(error)) from error

    def _copy_of(self, tokenizer: TokenizerLike) -> TokenizerLike:
        """The tokenizer of the thread for long prompts; copied where the other one is used."""
        if self._copy is None:
            self._copy = self._short.submit(copy.deepcopy, tokenizer).result()
        return self._copy


def is_long(request: GenerationRequest) -> bool:
    """Whether tokenizing a prompt takes so long that short ones must not wait for it."""
    if isinstance(request.prompt, str):
        return len(request.prompt) > LONG_CHARS
    chars = sum(len(turn.content) + CHARS_PER_TURN for turn in request.prompt)
    return chars > LONG_CHARS


def written(tokenizer: TokenizerLike, request: GenerationRequest) -> tuple[str, bool]:
    """A prompt as the one text that is tokenized, and whether it is a chat's."""
    if isinstance(request.prompt, str):
        return request.prompt, False
    turns = [{"role": turn.role, "content": turn.content} for turn in request.prompt]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str), "a template that is not tokenized gives text"
    return text, True


def least_tokens(text: str, longest_chars: int) -> int:
    """Of how many tokens a text consists at least.

    Certain for byte-level BPE: there a token of n characters in the vocabulary stands for n bytes,
    which are at most n characters of text, or 1.5 n where the tokenizer composes them first (NFC:
    three characters in two bytes). White space is not counted, as special tokens may swallow what
    stands beside them. Other tokenizers may drop more, or read any unknown text as one token; for
    them this is a generous bound that no prompt in a language comes near.

    Args:
        longest_chars: characters of the longest token in the vocabulary.
    """
    if len(text) <= 2 * longest_chars:  # as most are; spares the counting
        return 0
    chars = sum(map(len, text.split()))
    return -(-chars // (2 * longest_chars))
