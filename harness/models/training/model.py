# mypy: disable-error-code="misc"
"""The reference model in PyTorch: llama.cpp's `qwen3moe` graph, small enough to train on a CPU.

The expert layer sorts the routed slots by expert and multiplies each expert's rows in one matrix
product; its backward pass is written by hand, because autograd over 3 x 32 x 8 small products per
step costs more than the products.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

PAD = 32


@dataclass(frozen=True)
class Geometry:
    """Sizes of the model; the names follow the GGUF metadata."""

    vocab_size: int = 1536
    block_count: int = 8
    embedding_length: int = 256
    head_count: int = 8
    head_count_kv: int = 2
    key_length: int = 32
    expert_count: int = 32
    expert_used_count: int = 4
    expert_feed_forward_length: int = 256
    context_length: int = 2048
    rope_freq_base: float = 10000.0
    rms_eps: float = 1e-6

    def as_dict(self) -> dict[str, Any]:
        """Plain data for checkpoints and the sidecar."""
        return asdict(self)


class Grouped(torch.autograd.Function):
    """SwiGLU of every expert over its own rows of `x`, which are sorted by expert."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor, bounds: list[int]) -> Tensor:
        """x [S, D], gate_up [E, D, 2F], down [E, F, D], bounds: E+1 row offsets."""
        low = x.dtype
        wide, narrow = gate_up.to(low), down.to(low)
        both = x.new_empty(x.shape[0], wide.shape[2])
        for e, (a, b) in enumerate(pairwise(bounds)):
            torch.mm(x[a:b], wide[e], out=both[a:b])
        g, u = both.chunk(2, dim=1)
        hidden = fn.silu(g) * u
        out = torch.empty_like(x)
        for e, (a, b) in enumerate(pairwise(bounds)):
            torch.mm(hidden[a:b], narrow[e], out=out[a:b])
        ctx.save_for_backward(x, wide, narrow, both, hidden)
        ctx.bounds = bounds
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of x, gate_up and down."""
        x, wide, narrow, both, hidden = ctx.saved_tensors
        spans = list(enumerate(pairwise(ctx.bounds)))
        grad = grad.contiguous()
        d_narrow, d_wide = torch.empty_like(narrow), torch.empty_like(wide)
        d_hidden = torch.empty_like(hidden)
        for e, (a, b) in spans:
            torch.mm(hidden[a:b].t(), grad[a:b], out=d_narrow[e])
            torch.mm(grad[a:b], narrow[e].t(), out=d_hidden[a:b])
        g, u = both.chunk(2, dim=1)
        s = torch.sigmoid(g)
        silu = g * s
        d_both = torch.cat((d_hidden * u * (s + silu * (1 - s)), d_hidden * silu), dim=1)
        d_x = torch.empty_like(x)
        for e, (a, b) in spans:
            torch.mm(x[a:b].t(), d_both[a:b], out=d_wide[e])
            torch.mm(d_both[a:b], wide[e].t(), out=d_x[a:b])
        return d_x, d_wide.float(), d_narrow.float(), None


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise."""
        return fn.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_tables(length: int, size: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin of the NEOX (half-split) rotation."""
    frequency = base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
    return torch.cos(angle).repeat(1, 2), torch.sin(angle).repeat(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotation to x [B, H, T, size]."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention for [B, H, T, size].

    While training in bfloat16 it is spelt out, by blocks of queries: for heads of 32 the CPU kernel
    of scaled_dot_product_attention takes about twice as long, most of it in the backward pass.
    """
    if not torch.is_autocast_enabled("cpu"):
        return fn.scaled_dot_product_attention(q, k, v, is_causal=True)
    q, k, v = (t.bfloat16() for t in (q * q.shape[-1] ** -0.5, k, v))
    block = 128
    mask = q.new_full((block, block), float("-inf")).triu(1)
    out = []
    for start in range(0, q.shape[2], block):
        end = min(start + block, q.shape[2])
        scores = q[:, :, start:end] @ k[:, :, :end].transpose(-1, -2)
        scores[..., start:] += mask[: end - start, : end - start]
        out.append(torch.softmax(scores, -1, dtype=torch.bfloat16) @ v[:, :, :end])
    return torch.cat(out, 2)


class Attention(nn.Module):
    """Grouped-query attention with an RMS norm on every query and key head."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.g = g
        width = g.embedding_length
        self.q = nn.Linear(width, g.head_count * g.key_length, bias=False)
        self.k = nn.Linear(width, g.head_count_kv * g.key_length, bias=False)
        self.v = nn.Linear(width, g.head_count_kv * g.key_length, bias=False)
        self.o = nn.Linear(g.head_count * g.key_length, width, bias=False)
        self.q_norm = RMSNorm(g.key_length, g.rms_eps)
        self.k_norm = RMSNorm(g.key_length, g.rms_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal attention over x [B, T, D]."""
        g, (batch, length, _) = self.g, x.shape

        def heads(y: Tensor, count: int) -> Tensor:
            return y.view(batch, length, count, g.key_length)

        q = self.q_norm(heads(self.q(x), g.head_count)).transpose(1, 2)
        k = self.k_norm(heads(self.k(x), g.head_count_kv)).transpose(1, 2)
        v = heads(self.v(x), g.head_count_kv).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        repeat = g.head_count // g.head_count_kv
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        y = attend(q, k, v)
        out: Tensor = self.o(y.transpose(1, 2).reshape(batch, length, -1))
        return out


class Experts(nn.Module):
    """Router and experts: softmax over all, top-k, weights renormalised."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.g = g
        width, hidden, count = g.embedding_length, g.expert_feed_forward_length, g.expert_count
        self.router = nn.Linear(width, count, bias=False)
        self.gate_up = nn.Parameter(torch.empty(count, width, 2 * hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, width))
        self.low = torch.float32  # dtype of the expert products

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Output, load-balancing loss (1 when even) and slots per expert, for x [N, D]."""
        k, count = self.g.expert_used_count, self.g.expert_count
        chance = torch.softmax(self.router(x), dim=-1)
        weight, chosen = torch.topk(chance, k, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        load = torch.bincount(flat, minlength=count)
        # Every expert's rows are padded to a multiple of PAD: oneDNN compiles a kernel per shape.
        room = (load + PAD - 1) // PAD * PAD
        start = torch.cumsum(room, 0) - room
        shift = start - (torch.cumsum(load, 0) - load)
        place = torch.arange(len(flat)) + shift[flat[order]]
        bounds = [*start.tolist(), int(room.sum())]
        rows = torch.zeros(bounds[-1], dtype=torch.long).index_copy(0, place, order // k)
        scale = x.new_zeros(bounds[-1]).index_copy(0, place, weight.reshape(-1)[order])
        slots = Grouped.apply(x[rows].to(self.low), self.gate_up, self.down, bounds)
        mixed = slots.float() * scale.unsqueeze(1)
        out = torch.zeros_like(x).index_add(0, rows, mixed)
        share = load.float() / load.sum()
        return out, count * (share * chance.mean(0)).sum(), load


class Block(nn.Module):
    """One layer."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(g.embedding_length, g.rms_eps)
        self.attn = Attention(g)
        self.ffn_norm = RMSNorm(g.embedding_length, g.rms_eps)
        self.experts = Experts(g)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Residual stream, balancing loss, slots per expert."""
        x = x + self.attn(self.attn_norm(x), cos, sin)
        y, balance, load = self.experts(self.ffn_norm(x).reshape(-1, x.shape[-1]))
        return x + y.view_as(x), balance, load


class Model(nn.Module):
    """The whole model; embeddings are tied."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.g = g
        self.embed = nn.Embedding(g.vocab_size, g.embedding_length)
        self.blocks = nn.ModuleList(Block(g) for _ in range(g.block_count))
        self.norm = RMSNorm(g.embedding_length, g.rms_eps)
        cos, sin = rope_tables(g.context_length, g.key_length, g.rope_freq_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.reset()

    def reset(self) -> None:
        """Initialise: width-scaled normal, smaller where a layer writes to the residual stream."""
        std = 0.6 / math.sqrt(self.g.embedding_length)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            scale = 1.0
            if name.endswith(("down", "o.weight")):
                scale = 1.0 / math.sqrt(2 * self.g.block_count)
            if name.startswith("embed"):
                scale = 0.02 / std
            nn.init.normal_(parameter, std=std * scale)

    def run(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, summed balancing loss, slots [layer, expert]."""
        length = ids.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x = self.embed(ids)
        balance, loads = x.new_zeros(()), []
        for block in self.blocks:
            x, one, load = block(x, cos, sin)
            balance = balance + one
            loads.append(load)
        return fn.linear(self.norm(x), self.embed.weight), balance, torch.stack(loads)

    def logits(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, T, vocab] and slots [layer, expert]."""
        out, _, loads = self.run(ids)
        return out, loads

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean cross-entropy, summed balancing loss, slots [layer, expert]."""
        out, balance, loads = self.run(ids)
        loss = fn.cross_entropy(out.reshape(-1, self.g.vocab_size), targets.reshape(-1))
        return loss, balance, loads

    def set_expert_dtype(self, dtype: torch.dtype) -> None:
        """Number format of the expert products (parameters stay float32)."""
        for block in self.blocks:
            block.experts.low = dtype
