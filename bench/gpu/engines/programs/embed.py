"""sentence-transformers with a BERT of random weights (base size): batches of 64 sentences, again and again.

usage: embed.py CONTROL_FILE SAMPLES_FILE --folder FOLDER   (where the model is put before it is loaded)
"""
# mypy: ignore-errors

from __future__ import annotations

import argparse
from pathlib import Path

from bench.gpu.engines.programs import steer

WORDS, SENTENCES, LENGTH, WIDTH = 2000, 64, 48, 768


def model(folder: Path):
    """Written as a published model is, and loaded as a user loads one."""
    import torch
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = folder / "words.txt"
    words.write_text("\n".join([*special, *(f"w{at}" for at in range(WORDS))]))
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=WORDS + len(special), hidden_size=WIDTH)).save_pretrained(folder)
    BertTokenizerFast(vocab={word: at for at, word in enumerate(words.read_text().split())}).save_pretrained(folder)
    whole = models.Transformer(str(folder), max_seq_length=128)
    return SentenceTransformer(modules=[whole, models.Pooling(WIDTH)], device="cuda")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("control", type=Path)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    encoder = model(options.folder)
    numbers = [steer.prompts(LENGTH, WORDS)[at % steer.PROMPTS] for at in range(SENTENCES)]
    sentences = [" ".join(f"w{number}" for number in each) for each in numbers]

    def turn():
        encoder.encode(sentences, batch_size=SENTENCES, show_progress_bar=False)
        return float(SENTENCES), []

    for _ in range(3):
        turn()
    steer.ready()
    steer.loop(steer.Control(options.control), steer.Samples(options.samples), turn)


if __name__ == "__main__":
    main()
