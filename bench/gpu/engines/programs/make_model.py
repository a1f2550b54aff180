"""Models without a meaning: a folder that vLLM starts with dummy weights, or a file of random weights for llama.cpp.

usage: make_model.py vllm FOLDER          a config.json: Llama, 8 G parameters
       make_model.py gguf FILE [SCALE]    16 layers, 2048 wide (an eighth of it with SCALE 8), f16: 2.2 GB; needs gguf
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

VLLM = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LAYERS, WIDTH, INNER, HEADS, KEYS, WORDS = 16, 2048, 8192, 32, 8, 32_000


def vllm(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(VLLM, indent=1))


def tensors(scale: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a llama in llama.cpp's words, rows first."""
    width, inner = WIDTH // scale, INNER // scale
    narrow = width * KEYS // HEADS
    yield "token_embd.weight", (WORDS, width)
    for at in range(LAYERS):
        yield f"blk.{at}.attn_norm.weight", (width,)
        yield f"blk.{at}.attn_q.weight", (width, width)
        yield f"blk.{at}.attn_k.weight", (narrow, width)
        yield f"blk.{at}.attn_v.weight", (narrow, width)
        yield f"blk.{at}.attn_output.weight", (width, width)
        yield f"blk.{at}.ffn_norm.weight", (width,)
        yield f"blk.{at}.ffn_gate.weight", (inner, width)
        yield f"blk.{at}.ffn_up.weight", (inner, width)
        yield f"blk.{at}.ffn_down.weight", (width, inner)
    yield "output_norm.weight", (width,)
    yield "output.weight", (WORDS, width)


def gguf(file: Path, scale: int) -> None:
    """Complete or not there: it is moved to its name at the end."""
    from gguf import GGUFWriter  # type: ignore[import-not-found,unused-ignore]

    unfinished = file.with_suffix(".unfinished")
    writer: Any = GGUFWriter(str(unfinished), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH // scale)
    writer.add_feed_forward_length(INNER // scale)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEYS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // scale // HEADS)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("none")
    writer.add_file_type(1)  # f16
    # One pool of random numbers, begun at another place for each tensor: a billion of them would take half a minute.
    pool = (0.02 * np.random.default_rng(0).standard_normal(1 << 22, np.float32)).astype(np.float16)
    for at, (name, shape) in enumerate(tensors(scale)):
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
        else:
            writer.add_tensor(name, np.resize(np.roll(pool, 7919 * at), shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(unfinished, file)


def main() -> None:
    kind, path, *rest = sys.argv[1:]
    if kind == "vllm":
        vllm(Path(path))
    else:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        gguf(Path(path), int(rest[0]) if rest else 1)


if __name__ == "__main__":
    main()
