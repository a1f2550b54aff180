"""Offline: training of a transformer (12 layers, 2048 wide, bf16), steps as fast as they go.

usage: transformer.py CONTROL_FILE SAMPLES_FILE. A sample is a step's time in seconds.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from bench.gpu.workloads.turns import play


def main() -> None:
    layer = torch.nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(32, 512, 2048, device="cuda", dtype=torch.bfloat16)

    def step() -> float:
        began = time.perf_counter()
        optimizer.zero_grad()
        model(batch).float().pow(2).mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    for _ in range(3):
        step()
    play(Path(sys.argv[1]), Path(sys.argv[2]), step, 0.0)


if __name__ == "__main__":
    main()
