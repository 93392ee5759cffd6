"""Checkpoint to GGUF, and GGUF to Q4_K_M by llama.cpp's own quantizer."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from harness.models.training.model import Geometry
from harness.models.training.tokenizer import END

ARCH = "qwen3moe"
Q4_K_M = 15  # LLAMA_FTYPE_MOSTLY_Q4_K_M
SIZE_LIMIT = 32_000_000
_HALF_OR_MORE = 2  # tensors with fewer dimensions stay F32


class ExportError(Exception):
    """The model cannot be written as asked."""


def load_weights(path: Path) -> tuple[Geometry, dict[str, torch.Tensor], dict[str, Any]]:
    """Geometry, parameters and the rest of a checkpoint."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    return Geometry(**state["geometry"]), state["model"], state


def tensors(g: Geometry, weights: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Parameters under their GGUF names; expert matrices are stored as [expert, out, in]."""
    out: dict[str, torch.Tensor] = {
        "token_embd.weight": weights["embed.weight"],
        "output_norm.weight": weights["norm.weight"],
    }
    names = {
        "attn_norm.weight": "attn_norm",
        "ffn_norm.weight": "ffn_norm",
        "attn.q.weight": "attn_q",
        "attn.k.weight": "attn_k",
        "attn.v.weight": "attn_v",
        "attn.o.weight": "attn_output",
        "attn.q_norm.weight": "attn_q_norm",
        "attn.k_norm.weight": "attn_k_norm",
        "experts.router.weight": "ffn_gate_inp",
    }
    width = g.expert_feed_forward_length
    for layer in range(g.block_count):
        for ours, theirs in names.items():
            out[f"blk.{layer}.{theirs}.weight"] = weights[f"blocks.{layer}.{ours}"]
        both = weights[f"blocks.{layer}.experts.gate_up"]
        down = weights[f"blocks.{layer}.experts.down"]
        out[f"blk.{layer}.ffn_gate_exps.weight"] = both[:, :, :width].transpose(1, 2)
        out[f"blk.{layer}.ffn_up_exps.weight"] = both[:, :, width:].transpose(1, 2)
        out[f"blk.{layer}.ffn_down_exps.weight"] = down.transpose(1, 2)
    return {name: value.float().contiguous().numpy() for name, value in out.items()}


def vocabulary(tokenizer_json: Path) -> tuple[list[str], list[str]]:
    """Tokens in order of id, and merges in order of rank."""
    model = json.loads(tokenizer_json.read_text(encoding="utf-8"))["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda pair: pair[1])]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return tokens, merges


def write_gguf(weights: Path, tokenizer_json: Path, out: Path, half: bool = True) -> None:
    """Write an F16 (or F32) GGUF; norms and routers are always F32."""
    g, parameters, _ = load_weights(weights)
    tokens, merges = vocabulary(tokenizer_json)
    if len(tokens) != g.vocab_size:
        raise ExportError(f"{tokenizer_json} has {len(tokens)} tokens, the model {g.vocab_size}")
    w = gguf.GGUFWriter(out, ARCH)
    w.add_name("moe-harness reference")
    w.add_description("Trained on the King James Version, Shakespeare and Milton")
    w.add_license("Apache-2.0")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if half else gguf.LlamaFileType.ALL_F32)
    w.add_vocab_size(g.vocab_size)
    w.add_context_length(g.context_length)
    w.add_embedding_length(g.embedding_length)
    w.add_block_count(g.block_count)
    w.add_feed_forward_length(g.expert_feed_forward_length)
    w.add_expert_feed_forward_length(g.expert_feed_forward_length)
    w.add_expert_count(g.expert_count)
    w.add_expert_used_count(g.expert_used_count)
    w.add_head_count(g.head_count)
    w.add_head_count_kv(g.head_count_kv)
    w.add_key_length(g.key_length)
    w.add_value_length(g.key_length)
    w.add_rope_freq_base(g.rope_freq_base)
    w.add_layer_norm_rms_eps(g.rms_eps)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types(
        [gguf.TokenType.CONTROL if t == END else gguf.TokenType.NORMAL for t in tokens]
    )
    w.add_token_merges(merges)
    w.add_bos_token_id(tokens.index(END))
    w.add_eos_token_id(tokens.index(END))
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    for name, value in tensors(g, parameters).items():
        full = not half or value.ndim < _HALF_OR_MORE or "ffn_gate_inp" in name
        w.add_tensor(name, value if full else value.astype(np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def quantize(source: Path, out: Path) -> None:
    """Q4_K_M by `llama_model_quantize`; routers stay F32 because the quantizer skips them."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = Q4_K_M
    params.nthread = 2
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params)
    if code != 0:
        raise ExportError(f"llama_model_quantize returned {code} for {source}")


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.models.training.export", description=__doc__
    )
    parser.add_argument("weights", type=Path, help="weights.pt or checkpoint.pt written by train")
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json written by tokenizer")
    parser.add_argument("out", type=Path, help="GGUF to write")
    parser.add_argument("--type", choices=("f16", "f32", "q4_k_m"), default="q4_k_m")
    args = parser.parse_args(argv)
    try:
        if args.type == "q4_k_m":
            between = args.out.with_suffix(".f32.gguf")
            write_gguf(args.weights, args.tokenizer, between, half=False)
            quantize(between, args.out)
            between.unlink()
        else:
            write_gguf(args.weights, args.tokenizer, args.out, half=args.type == "f16")
    except (ExportError, OSError) as error:
        print(f"export: {error}", file=sys.stderr)
        return 1
    size = args.out.stat().st_size
    print(f"{args.out}: {size:,} bytes")
    if args.type == "q4_k_m" and size >= SIZE_LIMIT:
        print(f"export: larger than {SIZE_LIMIT:,} bytes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
