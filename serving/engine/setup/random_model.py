"""The random model: a tiny Llama with random weights, created locally in seconds.

Its output is meaningless. Tests and timings run the real engine with it.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from serving.engine.setup.model_cache import cached_model, marker_of

RECIPE = 1
"""Version of the model's files: increase it with every change below that changes them."""

VOCABULARY = 4096
CONTEXT_TOKENS = 8192
TRAINING_BYTES = 2 << 20
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def has_random_weights(model_path: str | Path) -> bool:
    """Whether a model folder holds the random model: its output is meaningless."""
    return bool(marker_of(model_path).get("random_weights"))


def ensure_random_model(root: Path | None = None) -> Path:
    """The folder of the random model, created if it is missing; safe with several processes.

    Raises:
        ModelNotLoaded: the cache folder cannot be written.
    """
    recipe = {"random_weights": True, "recipe": RECIPE}
    return cached_model(f"random-{RECIPE}", recipe, _save, root=root)


def _save(folder: Path) -> None:
    _save_tokenizer(folder)
    _save_weights(folder)


def _standard_library_text() -> Iterator[str]:
    """Local text to train the tokenizer on: source code of Python's standard library."""
    remaining = TRAINING_BYTES
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")[:remaining]
        remaining -= len(text)
        yield text
        if remaining <= 0:
            return


def _save_tokenizer(folder: Path, texts: Iterable[str] | None = None) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|bos|>", "<|eos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts or _standard_library_text(), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        pad_token="<|eos|>",
        model_max_length=CONTEXT_TOKENS,
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)


def _save_weights(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        tie_word_embeddings=True,
        initializer_range=0.1,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
