"""Training of a Hugging Face model (0.3 G parameters, bf16, AdamW, gradient checkpointing), steps as fast as they go.

usage: hf_train.py CONTROL_FILE SAMPLES_FILE
"""
# mypy: ignore-errors

from __future__ import annotations

import sys
from pathlib import Path

import torch
from bench.gpu.engines.programs import steer
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, BATCH, LENGTH = 32_000, 16, 512


def main() -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16}
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **shape)).to(torch.bfloat16)
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randint(VOCABULARY, (BATCH, LENGTH), device="cuda")

    def turn():
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        loss.item()  # as a program does that prints it
        return 1.0, []

    for _ in range(3):
        turn()
    steer.ready()
    steer.loop(steer.Control(Path(sys.argv[1])), steer.Samples(Path(sys.argv[2])), turn)


if __name__ == "__main__":
    main()
