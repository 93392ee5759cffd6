"""Training of the reference model that the repository ships (an extra: needs torch and tokenizers).

The room reads public-domain texts, writes a checkpoint and a GGUF file, and is imported by nothing
else in the harness: the shipped file and its sidecar are all that the other rooms know.
"""
