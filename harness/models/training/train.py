"""Train the reference model on a CPU within a wall-time budget.

The learning rate is a function of the share of the budget that has passed, so a run ends annealed
whatever else the machine is doing. Checkpoints let a run resume; the log is append-only.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    long_from: float = 1.0  # share of the budget; 1: never
    lr: float = 1.5e-3
    warmup: float = 0.03
    final_lr: float = 0.02
    weight_decay: float = 0.1
    balance: float = 0.01
    anneal_lr: float = 0.0
    anneal_from: float = 0.0
    seed: int = 1
    bf16: bool = True


def learning_rate(s: Settings, share: float) -> float:
    """Linear warm-up, then cosine to `final_lr` of the peak, over the share of the budget.

    A resumed run may anneal anew: linearly from `anneal_lr`, from `anneal_from` of the budget on.
    """
    if s.anneal_lr > 0:
        return s.anneal_lr * max(0.01, 1 - (share - s.anneal_from) / (1 - s.anneal_from))
    if share < s.warmup:
        return s.lr * max(share, 1e-3) / s.warmup
    x = min(1.0, (share - s.warmup) / (1 - s.warmup))
    return s.lr * (s.final_lr + (1 - s.final_lr) * 0.5 * (1 + math.cos(math.pi * x)))


def windows(ids: np.ndarray, length: int, offset: int) -> np.ndarray:
    """Consecutive windows of `length` + 1 tokens; the first of each becomes BOS."""
    count = (len(ids) - 1 - offset) // length
    index = offset + np.arange(count)[:, None] * length + np.arange(length + 1)[None, :]
    out: np.ndarray = ids[index].astype(np.int64)
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
    decay: list[Tensor] = []
    plain: list[Tensor] = []
    for name, parameter in model.named_parameters():
        small = parameter.dim() < 2 or "router" in name or "embed" in name
        (plain if small else decay).append(parameter)
    groups = [
        {"params": decay, "weight_decay": s.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=s.lr, betas=(0.9, 0.95), fused=True)


def clip(model: Model, limit: float) -> None:
    """Scale gradients down to a norm, and leave them alone (no pass over memory) if within it."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads)
    if norm > limit:
        torch._foreach_mul_(grads, limit / norm)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)


@dataclass
class Progress:
    """How far a run is."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0


class Log:
    """Append-only log: means since the last line."""

    def __init__(self, path: Path, model: Model) -> None:
        self.path = path
        self.losses: list[float] = []
        self.balances: list[float] = []
        self.usage = torch.zeros(model.g.block_count, model.g.expert_count)
        if not path.exists():
            path.write_text(LOG_HEADER + "\n", encoding="utf-8")

    def add(self, loss: float, balance: float, load: Tensor) -> None:
        """One step."""
        self.losses.append(loss)
        self.balances.append(balance)
        self.usage += load

    def write(self, at: Progress, lr: float, heldout: float | None) -> None:
        """One line; the averages start again."""
        share = (self.usage / self.usage.sum(1, keepdim=True)).min().item()
        row = (
            f"{at.step},{at.elapsed_s:.1f},{at.tokens},{lr:.3e},{np.mean(self.losses):.4f},"
            f"{np.mean(self.balances):.4f},{'' if heldout is None else f'{heldout:.4f}'},"
            f"{share:.5f}"
        )
        with self.path.open("a", encoding="utf-8") as file:
            file.write(row + "\n")
        print(row, flush=True)
        self.losses.clear()
        self.balances.clear()
        self.usage.zero_()


class Run:
    """One training run: model, optimiser, batches, progress."""

    def __init__(self, corpus: Path, out: Path, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.out, self.s = out, settings
        self.train_ids = np.load(corpus / "train.npy")
        self.held = np.load(corpus / "heldout.npy")
        self.model = Model(Geometry())
        self.model.set_expert_dtype(torch.bfloat16 if settings.bf16 else torch.float32)
        self.optimizer = optimizer_of(self.model, settings)
        self.batches = Batches(self.train_ids, settings.seed)
        self.at = Progress()
        out.mkdir(parents=True, exist_ok=True)

    def resume(self) -> None:
        """Go on from the checkpoint in the output folder, in a new order of batches."""
        state = torch.load(self.out / "checkpoint.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.at = Progress(state["step"], state["tokens"], state["elapsed_s"])
        self.batches = Batches(self.train_ids, self.s.seed + self.at.step)

    def save(self) -> None:
        """Write weights.pt, and checkpoint.pt from which the run can go on."""
        weights = {
            "geometry": self.model.g.as_dict(),
            "settings": vars(self.s),
            "model": self.model.state_dict(),
            **vars(self.at),
        }
        save(self.out / "checkpoint.pt", {**weights, "optimizer": self.optimizer.state_dict()})
        save(self.out / "weights.pt", weights)

    def step(self, share: float) -> tuple[float, float, float, Tensor]:
        """One optimiser step: learning rate, loss, balancing loss per layer, slots."""
        lr = learning_rate(self.s, share)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        length = self.s.long_length if share >= self.s.long_from else self.s.length
        ids, targets = self.batches.take(self.s.batch_tokens, length)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.s.bf16):
            loss, balance, load = self.model(ids, targets)
        (loss.float() + self.s.balance * balance.float()).backward()
        clip(self.model, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.at.step += 1
        self.at.tokens += ids.numel()
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"loss is {loss.item()} at step {self.at.step}")
        return lr, loss.item(), balance.item() / self.model.g.block_count, load

    def go(self, log: Log, every_s: float) -> None:
        """Run to the end of the budget; the weights are in the output folder."""
        began = time.monotonic() - self.at.elapsed_s
        saved = evaluated = self.at.elapsed_s
        while self.at.elapsed_s < self.s.budget_s:
            lr, loss, balance, load = self.step(self.at.elapsed_s / self.s.budget_s)
            log.add(loss, balance, load)
            self.at.elapsed_s = time.monotonic() - began
            if self.at.step % 10 == 0:
                heldout = None
                if self.at.elapsed_s - evaluated >= every_s:
                    heldout = evaluate(self.model, self.held, limit=32)
                    evaluated = self.at.elapsed_s
                log.write(self.at, lr, heldout)
            if self.at.elapsed_s - saved >= every_s:
                self.save()
                saved = self.at.elapsed_s
        self.save()
        if log.losses:
            log.write(self.at, learning_rate(self.s, 1.0), evaluate(self.model, self.held))


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
    parser.add_argument(
        "--long-from",
        type=float,
        default=d.long_from,
        help="share of the budget after which windows are of 1024 tokens (1: never)",
    )
    parser.add_argument("--seed", type=int, default=d.seed)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--float32", action="store_true", help="do not use bfloat16")
    parser.add_argument("--checkpoint-minutes", type=float, default=5.0)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in OUT")
    parser.add_argument(
        "--anneal-lr",
        type=float,
        default=0.0,
        help="with --resume: fall linearly from this rate over what is left of the budget",
    )
    args = parser.parse_args(argv)
    if not (args.corpus / "train.npy").is_file():
        print(
            f"train: {args.corpus}/train.npy is missing; run prepare_corpus and tokenizer first",
            file=sys.stderr,
        )
        return 1
    torch.set_num_threads(args.threads)
    settings = Settings(
        budget_s=args.budget_minutes * 60,
        batch_tokens=args.batch_tokens,
        lr=args.lr,
        balance=args.balance,
        long_from=args.long_from,
        seed=args.seed,
        bf16=not args.float32,
    )
    run = Run(args.corpus, args.out, settings)
    if args.resume:
        if not (args.out / "checkpoint.pt").is_file():
            print(f"train: no checkpoint.pt in {args.out} to resume from", file=sys.stderr)
            return 1
        run.resume()
        if args.anneal_lr:
            share = run.at.elapsed_s / settings.budget_s
            run.s = settings = replace(settings, anneal_lr=args.anneal_lr, anneal_from=share)
    print(json.dumps({"settings": vars(settings), "geometry": run.model.g.as_dict()}), flush=True)
    run.go(Log(args.log, run.model), args.checkpoint_minutes * 60)
    print(f"weights: {args.out / 'weights.pt'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
