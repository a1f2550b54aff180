"""Hugging Face `generate` in bf16 with random weights (1.1 G parameters): requests one after the other.

usage: hf_generate.py CONTROL_FILE SAMPLES_FILE
"""
# mypy: ignore-errors

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from bench.gpu.engines.programs import steer
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

VOCABULARY = 32_000


class Tokens(BaseStreamer):
    """Hands over what `generate` has found; first it gets the prompt."""

    def __init__(self, put: Callable[[int], None]) -> None:
        self._put, self._prompt = put, True

    def put(self, value) -> None:
        if not self._prompt:
            self._put(int(value))
        self._prompt = False

    def end(self) -> None:
        """Nothing waits for it."""


def main() -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
    config = LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=8, max_position_embeddings=2048, **shape)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()

    def answer(prompt: list[int], tokens: int, put: Callable[[int], None]) -> None:
        given = torch.tensor([prompt], device="cuda")
        words = {"do_sample": False, "max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
        with torch.no_grad():
            model.generate(given, attention_mask=torch.ones_like(given), streamer=Tokens(put), **words)

    for prompt in steer.prompts(128, VOCABULARY)[:2]:
        answer(prompt, 8, lambda _: None)
    steer.ready()
    steer.serve(steer.Control(Path(sys.argv[1])), steer.Samples(Path(sys.argv[2])), VOCABULARY, answer)


if __name__ == "__main__":
    main()
