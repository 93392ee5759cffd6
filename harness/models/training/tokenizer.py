"""Byte-level BPE for the reference model, in the form that llama.cpp calls `gpt2` / `gpt-2`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"  # id 0; begins every window in training, so it serves as BOS, and ends works
VOCAB_SIZE = 1536


def texts(jsonl: Path) -> list[str]:
    """The works of one part of the corpus."""
    with jsonl.open(encoding="utf-8") as file:
        return [str(json.loads(line)["text"]) for line in file]


def train_tokenizer(train: Path, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train on the training part only. The GPT-2 regex is the one llama.cpp uses for `gpt-2`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(train), trainer)
    return tokenizer


def encode_part(tokenizer: Tokenizer, jsonl: Path) -> np.ndarray:
    """One token stream: every work followed by the end token."""
    ids: list[int] = []
    for text in texts(jsonl):
        ids.extend(tokenizer.encode(text, add_special_tokens=False).ids)
        ids.append(0)
    return np.asarray(ids, dtype=np.uint16)


def main(argv: list[str] | None = None) -> int:
    """Command line: writes tokenizer.json, train.npy and heldout.npy beside the corpus."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.models.training.tokenizer", description=__doc__
    )
    parser.add_argument("corpus", type=Path, help="folder written by prepare_corpus")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    args = parser.parse_args(argv)
    train = args.corpus / "train.jsonl"
    if not train.is_file():
        print(f"tokenizer: {train} is missing; run prepare_corpus first", file=sys.stderr)
        return 1
    tokenizer = train_tokenizer(train, args.vocab_size)
    tokenizer.save(str(args.corpus / "tokenizer.json"))
    for part in ("train", "heldout"):
        ids = encode_part(tokenizer, args.corpus / f"{part}.jsonl")
        np.save(args.corpus / f"{part}.npy", ids)
        print(f"{part}: {len(ids):,} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
