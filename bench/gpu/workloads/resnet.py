"""Online: ResNet-50 inference, batch of 8 in half precision, as one CUDA graph, 25 requests a second.

usage: resnet.py CONTROL_FILE SAMPLES_FILE. A sample is a request's latency in seconds. Weights are random: the time is
the same.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torchvision
from bench.gpu.workloads.turns import play

PERIOD = 0.04


def main() -> None:
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().eval().to("cuda", memory_format=torch.channels_last).half()
    image = torch.randn(8, 3, 224, 224, device="cuda", dtype=torch.half).to(memory_format=torch.channels_last)
    with torch.inference_mode():
        for _ in range(20):
            model(image)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(image)

        def request() -> float:
            began = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            return time.perf_counter() - began

        for _ in range(10):
            request()
        play(Path(sys.argv[1]), Path(sys.argv[2]), request, PERIOD)


if __name__ == "__main__":
    main()
