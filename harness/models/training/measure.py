"""Measure a trained reference model and write its sidecar.

Held-out perplexity of the float checkpoint in PyTorch and of the GGUF file through llama.cpp, over
the same windows; use of the experts; agreement of the two tokenizers; a greedy sample.

Perplexity is over consecutive windows of `LENGTH` input tokens, each begun by the BOS token, all
positions scored. `late` scores the second half of each window only, as llama.cpp's own tool does.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from harness.models.training.export import ARCH, load_weights
from harness.models.training.model import Model
from harness.models.training.routing import predictability
from harness.models.training.tokenizer import texts
from harness.models.training.train import windows

if TYPE_CHECKING:
    from llama_cpp import Llama

LENGTH = 512
PROMPTS = ("And it came to pass", "HAMLET.\nWhat, my lord", "In the beginning")


def perplexity(losses: np.ndarray) -> dict[str, float]:
    """Both conventions, from losses [window, position]."""
    return {
        "all": round(math.exp(losses.mean()), 4),
        "late": round(math.exp(losses[:, losses.shape[1] // 2 :].mean()), 4),
    }


def float_losses(model: Model, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss of every held-out token, and slots [layer, expert], in PyTorch float32."""
    usage = np.zeros((model.g.block_count, model.g.expert_count))
    losses = []
    with torch.no_grad():
        for row in rows:
            both = torch.from_numpy(row)
            logits, load = model.logits(both[None, :-1])
            usage += load.numpy()
            losses.append(
                torch.nn.functional.cross_entropy(logits[0], both[1:], reduction="none").numpy()
            )
    return np.stack(losses), usage


def expert_usage(usage: np.ndarray) -> list[dict[str, float]]:
    """Per layer: experts above 1 % of the slots, entropy as a share of its maximum, extremes."""
    out = []
    for layer in usage:
        p = layer / layer.sum()
        entropy = -(p[p > 0] * np.log(p[p > 0])).sum() / math.log(len(p))
        out.append(
            {
                "experts_above_1pct": int((p > 0.01).sum()),
                "entropy": round(float(entropy), 4),
                "min_share": round(float(p.min()), 5),
                "max_share": round(float(p.max()), 5),
            }
        )
    return out


def open_gguf(path: Path, used: int | None = None, length: int = LENGTH) -> Llama:
    """The file in llama.cpp; `used` overrides the number of routed experts."""
    from llama_cpp import Llama

    override = None if used is None else {f"{ARCH}.expert_used_count": used}
    return Llama(
        str(path),
        n_ctx=length,
        n_batch=length,
        logits_all=True,
        n_threads=2,
        kv_overrides=override,
        verbose=False,
    )


def gguf_losses(llm: Llama, rows: np.ndarray) -> np.ndarray:
    """Loss of every held-out token through llama.cpp."""
    losses = []
    for row in rows:
        llm.reset()
        llm.eval(row[:-1].tolist())
        logits = llm.scores[: len(row) - 1].astype(np.float64)
        top = logits.max(1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(1))
        losses.append(total - logits[np.arange(len(row) - 1), row[1:]])
    return np.stack(losses)


def greedy(llm: Llama, prompt: str, count: int) -> str:
    """Greedy continuation of a prompt."""
    llm.reset()
    ids = llm.tokenize(prompt.encode(), add_bos=True)
    out: list[int] = []
    for _ in range(count):
        llm.eval(ids)
        ids = [int(llm.scores[llm.n_tokens - 1].argmax())]
        out += ids
    return prompt + str(llm.detokenize(out), "utf-8", errors="replace")


def tokenizer_differences(llm: Llama, tokenizer_json: Path, works: list[str]) -> int:
    """Works for which llama.cpp and the tokenizers library give different ids."""
    from tokenizers import Tokenizer

    ours = Tokenizer.from_file(str(tokenizer_json))
    odd = [
        "  two  spaces\n\n\nlines \n",
        "don't we'll I'VE 12 345",
        "café — “naïve” \U0001f600\t\r\n x",
    ]
    return sum(
        ours.encode(text, add_special_tokens=False).ids
        != llm.tokenize(text.encode(), add_bos=False, special=False)
        for text in [*works, *odd]
    )


def measure(
    weights: Path, corpus: Path, path: Path, limit: int | None, tokens: int
) -> dict[str, Any]:
    """Everything that the sidecar says of the model."""
    g, parameters, state = load_weights(weights)
    model = Model(g)
    model.load_state_dict(parameters)
    rows = windows(np.load(corpus / "heldout.npy"), LENGTH, 0)
    if limit is not None and limit < len(rows):
        rows = rows[np.linspace(0, len(rows) - 1, limit).astype(int)]
    losses, usage = float_losses(model, rows)
    llm = open_gguf(path)
    differ = tokenizer_differences(llm, corpus / "tokenizer.json", texts(corpus / "heldout.jsonl"))
    quantized = {str(g.expert_used_count): perplexity(gguf_losses(llm, rows))}
    samples = {prompt: greedy(llm, prompt, tokens) for prompt in PROMPTS}
    del llm
    for used in (2, 1):
        quantized[str(used)] = perplexity(gguf_losses(open_gguf(path, used), rows))
    report = json.loads((corpus / "corpus.json").read_text(encoding="utf-8"))
    return {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "bytes": path.stat().st_size,
        "architecture": ARCH,
        "quantization": "Q4_K_M",
        "geometry": g.as_dict(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokenizer": {
            "model": "gpt2",
            "pre": "gpt-2",
            "vocab_size": g.vocab_size,
            "bos": 0,
            "eos": 0,
            "add_bos": True,
            "works_tokenized_differently": differ,
        },
        "held_out": {
            "works": report["held_out_works"],
            "windows": len(rows),
            "window_tokens": LENGTH,
            "perplexity_float": perplexity(losses),
            "perplexity_q4_k_m_by_experts_used": quantized,
        },
        "expert_usage_held_out": expert_usage(usage),
        "routing_predictability_held_out": predictability(model, rows[::4]),
        "training": {
            "steps": state["step"],
            "tokens": state["tokens"],
            "elapsed_s": round(state["elapsed_s"], 1),
            "settings": state["settings"],
        },
        "corpus": report,
        "samples_greedy": samples,
    }


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.models.training.measure",
        description=(__doc__ or "").split("\n\n")[0],
    )
    parser.add_argument("weights", type=Path, help="weights.pt written by train")
    parser.add_argument("corpus", type=Path, help="folder written by prepare_corpus and tokenizer")
    parser.add_argument("gguf", type=Path, help="the Q4_K_M file written by export")
    parser.add_argument("out", type=Path, help="sidecar to write")
    parser.add_argument("--command", default="", help="training command, for the record")
    parser.add_argument("--limit", type=int, default=None, help="windows to use (default: all)")
    parser.add_argument("--sample-tokens", type=int, default=120)
    args = parser.parse_args(argv)
    for path in (args.weights, args.gguf, args.corpus / "heldout.npy"):
        if not path.is_file():
            print(f"measure: {path} is missing", file=sys.stderr)
            return 1
    torch.set_num_threads(2)
    report = measure(args.weights, args.corpus, args.gguf, args.limit, args.sample_tokens)
    report["training"]["command"] = args.command
    report["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    args.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
