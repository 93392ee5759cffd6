"""Train the reference model on a CPU within a wall-time budget.

The learning rate is a function of the share of the budget that has passed, so a run ends annealed
whatever else the machine is doing. Checkpoints let a run resume; the log is append-only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.models.training.model import Geometry, Model

LOG_HEADER = "step,elapsed_s,tokens,lr,train_loss,aux_loss,heldout_loss,experts_min_share"
BOS = 0


@dataclass(frozen=True)
class Settings:
    """What a run depends on, beside the geometry and the corpus."""

    budget_s: float = 3600.0
    batch_tokens: int = 2048
    length: int = 512
    long_length: int = 1024
    long_from: float = 0.8
    lr: float = 1.5e-3
    warmup: float = 0.03
    final_lr: float = 0.02
    weight_decay: float = 0.1
    balance: float = 0.01
    seed: int = 1
    bf16: bool = True


def learning_rate(s: Settings, share: float) -> float:
    """Linear warm-up, then cosine to `final_lr` of the peak, over the share of the budget."""
    if share < s.warmup:
        return s.lr * max(share, 1e-3) / s.warmup
    x = min(1.0, (share - s.warmup) / (1 - s.warmup))
    return s.lr * (s.final_lr + (1 - s.final_lr) * 0.5 * (1 + math.cos(math.pi * x)))


def windows(ids: np.ndarray, length: int, offset: int) -> np.ndarray:
    """Consecutive windows of `length` + 1 tokens; the first of each becomes BOS."""
    count = (len(ids) - 1 - offset) // length
    index = offset + np.arange(count)[:, None] * length + np.arange(length + 1)[None, :]
    out = ids[index].astype(np.int64)
    out[:, 0] = BOS
    return out


class Batches:
    """Shuffled epochs with a random phase each; the window length may change between batches."""

    def __init__(self, ids: np.ndarray, seed: int) -> None:
        self.ids, self.rng = ids, np.random.default_rng(seed)
        self.length, self.epoch = 0, 0
        self.stream: Iterator[np.ndarray] = iter(())

    def take(self, batch_tokens: int, length: int) -> tuple[Tensor, Tensor]:
        """One batch of inputs and targets."""
        rows: list[np.ndarray] = []
        if length != self.length:
            self.length, self.stream = length, iter(())
        while len(rows) < batch_tokens // length:
            row = next(self.stream, None)
            if row is None:
                whole = windows(self.ids, length, int(self.rng.integers(length)))
                self.rng.shuffle(whole)
                self.stream = iter(whole)
                self.epoch += 1
                continue
            rows.append(row)
        both = torch.from_numpy(np.stack(rows))
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def evaluate(model: Model, ids: np.ndarray, length: int = 512, limit: int | None = None) -> float:
    """Mean loss over the held-out windows (evenly spread over all works if limited)."""
    rows = windows(ids, length, 0)
    if limit is not None and limit < len(rows):
        rows = rows[np.linspace(0, len(rows) - 1, limit).astype(int)]
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(rows), 8):
            both = torch.from_numpy(rows[start : start + 8])
            loss, _, _ = model(both[:, :-1], both[:, 1:])
            total += float(loss) * len(both)
    return total / len(rows)


def optimizer_of(model: Model, s: Settings) -> torch.optim.AdamW:
    """AdamW; no decay on norms, router or embeddings."""
    decay, plain = [], []
    for name, parameter in model.named_parameters():
        small = parameter.dim() < 2 or "router" in name or "embed" in name
        (plain if small else decay).append(parameter)
    groups = [
        {"params": decay, "weight_decay": s.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=s.lr, betas=(0.9, 0.95), fused=True)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def train(corpus: Path, out: Path, log: Path, s: Settings, every_s: float, resume: bool) -> Path:
    """Run to the end of the budget; returns the path of the final weights."""
    torch.manual_seed(s.seed)
    train_ids, held = np.load(corpus / "train.npy"), np.load(corpus / "heldout.npy")
    model = Model(Geometry())
    model.set_expert_dtype(torch.bfloat16 if s.bf16 else torch.float32)
    optimizer = optimizer_of(model, s)
    batches = Batches(train_ids, s.seed)
    step, tokens, before = 0, 0, 0.0
    checkpoint = out / "checkpoint.pt"
    out.mkdir(parents=True, exist_ok=True)
    if resume and checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step, tokens, before = state["step"], state["tokens"], state["elapsed_s"]
        batches = Batches(train_ids, s.seed + step)  # a new order, from here on
    if not log.exists():
        log.write_text(LOG_HEADER + "\n", encoding="utf-8")
    began, saved, evaluated = time.monotonic(), before, before
    losses: list[float] = []
    balances: list[float] = []
    usage = torch.zeros(model.g.block_count, model.g.expert_count)
    print(json.dumps({"settings": vars(s), "geometry": model.g.as_dict()}), flush=True)

    def note(lr: float, heldout: float | None) -> None:
        share = (usage / usage.sum(1, keepdim=True)).min().item()
        row = (
            f"{step},{elapsed:.1f},{tokens},{lr:.3e},{np.mean(losses):.4f},"
            f"{np.mean(balances):.4f},{'' if heldout is None else f'{heldout:.4f}'},{share:.5f}"
        )
        with log.open("a", encoding="utf-8") as file:
            file.write(row + "\n")
        print(row, flush=True)
        losses.clear()
        balances.clear()
        usage.zero_()

    while True:
        elapsed = before + time.monotonic() - began
        share = elapsed / s.budget_s
        last = share >= 1
        if (last or elapsed - saved >= every_s) and step:
            weights = {"geometry": model.g.as_dict(), "step": step, "tokens": tokens,
                       "elapsed_s": elapsed, "settings": vars(s), "model": model.state_dict()}
            save(checkpoint, {**weights, "optimizer": optimizer.state_dict()})
            save(out / "weights.pt", weights)
            saved = elapsed
        if last:
            note(learning_rate(s, 1.0), evaluate(model, held))
            return out / "weights.pt"
        lr = learning_rate(s, share)
        for group in optimizer.param_groups:
            group["lr"] = lr
        length = s.long_length if share >= s.long_from else s.length
        ids, targets = batches.take(s.batch_tokens, length)
        with torch.autocast("cpu", torch.bfloat16, enabled=s.bf16):
            loss, balance, load = model(ids, targets)
        (loss.float() + s.balance * balance.float()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        step += 1
        tokens += ids.numel()
        losses.append(loss.item())
        balances.append(balance.item() / model.g.block_count)
        usage += load
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(f"loss is {losses[-1]} at step {step}")
        if step % 10 == 0:
            heldout = None
            if elapsed - evaluated >= every_s:
                heldout, evaluated = evaluate(model, held, limit=32), elapsed
            note(lr, heldout)


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    d = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m harness.models.training.train",
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("corpus", type=Path, help="folder written by prepare_corpus and tokenizer")
    parser.add_argument("out", type=Path, help="folder for checkpoints")
    parser.add_argument("--log", type=Path, default=Path(__file__).parent / "train_log.csv")
    parser.add_argument("--budget-minutes", type=float, default=d.budget_s / 60)
    parser.add_argument("--batch-tokens", type=int, default=d.batch_tokens)
    parser.add_argument("--lr", type=float, default=d.lr)
    parser.add_argument("--balance", type=float, default=d.balance, help="weight of that loss")
    parser.add_argument("--seed", type=int, default=d.seed)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--float32", action="store_true", help="do not use bfloat16")
    parser.add_argument("--checkpoint-minutes", type=float, default=5.0)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in OUT")
    args = parser.parse_args(argv)
    if not (args.corpus / "train.npy").is_file():
        print(f"train: {args.corpus}/train.npy is missing; run prepare_corpus and tokenizer first",
              file=sys.stderr)
        return 1
    torch.set_num_threads(args.threads)
    settings = Settings(
        budget_s=args.budget_minutes * 60, batch_tokens=args.batch_tokens, lr=args.lr,
        balance=args.balance, seed=args.seed, bf16=not args.float32,
    )
    path = train(args.corpus, args.out, args.log, settings, args.checkpoint_minutes * 60,
                 args.resume)
    print(f"weights: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
