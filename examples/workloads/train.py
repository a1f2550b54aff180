"""Offline: a small transformer learns to sort, on whatever the card has left. Needs PyTorch, and nothing else.

    python train.py                                                        the whole card
    aliquot run --class offline --core 50 --memory 10 -- python train.py   behind online work

The data is made up on the card, so there is nothing to download; the loss goes from about 4 towards 0. Every two
seconds it says how many steps a second it makes: what falls while online work has the card, and comes back after it.
"""

from __future__ import annotations

import argparse
import sys
import time

try:
    import torch
    from torch import nn
except ModuleNotFoundError:
    sys.exit("train.py: needs PyTorch, which is not installed here: pip install torch")

SYMBOLS, LENGTH = 64, 64


class Sorter(nn.Module):
    """Reads numbers, then says them in order: the second half of what it reads is what it said so far."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS + 1, width)  # one more: here the answer begins
        self.place = nn.Parameter(torch.randn(2 * LENGTH, width) * 0.02)
        block = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        known = numbers.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(known, device=numbers.device)
        seen = self.blocks(self.symbol(numbers) + self.place[:known], mask=mask, is_causal=True)
        return self.head(seen)


def batch(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What is read, and what should be said at each place of the second half."""
    numbers = torch.randint(SYMBOLS, (size, LENGTH), device=device)
    answer = numbers.sort(dim=1).values
    start = torch.full((size, 1), SYMBOLS, device=device)
    return torch.cat([numbers, start, answer[:, :-1]], dim=1), answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to train (default: 600)")
    parser.add_argument("--width", type=int, default=512, help="of the model, a multiple of 8 (default: 512)")
    parser.add_argument("--layers", type=int, default=8, help="default: 8")
    parser.add_argument("--batch", type=int, default=128, help="default: 128")
    parser.add_argument("--device", default="cuda", help="cpu: to try it without a GPU, slowly (default: cuda)")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("train.py: PyTorch sees no CUDA device here; --device cpu tries it without one")
    device = torch.device(options.device)

    torch.manual_seed(0)
    model = Sorter(options.width, options.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    print(f"{sum(weights.numel() for weights in model.parameters()) / 1e6:.1f}M parameters on {device}", flush=True)

    began = told = time.monotonic()
    steps = since = 0
    while time.monotonic() - began < options.seconds:
        reads, answer = batch(options.batch, device)
        with torch.autocast(device.type, dtype=half, enabled=half != torch.float32):
            said = model(reads)[:, LENGTH:]
            loss = nn.functional.cross_entropy(said.reshape(-1, SYMBOLS), answer.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        steps, since = steps + 1, since + 1
        now = time.monotonic()
        if now - told >= 2.0:
            print(f"step {steps}  loss {loss.item():.3f}  {since / (now - told):.1f} steps/s", flush=True)
            told, since = now, 0
    print(f"done: {steps} steps, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
