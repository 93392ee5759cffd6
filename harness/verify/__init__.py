"""Recomputes one MoE layer of a model in NumPy and compares it with what the engine computed.

Arithmetic over two inputs: the files of `moe-engine --moe-dump`, and the model's weights through
the `gguf` package's dequantisation. What is claimed, and why with these limits: docs/verify.md.
"""
