"""What children of torches.py run: importable by name."""
# mypy: ignore-errors

from __future__ import annotations

import torch


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 128

    def __getitem__(self, at: int):
        return torch.full((1000,), float(at))


def add(queue, back) -> None:
    x = queue.get(timeout=40)
    before = float(x.sum())
    x.add_(1)
    torch.cuda.synchronize()
    back.put(before)
    del x
    queue.get(timeout=40)
