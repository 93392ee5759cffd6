"""GGUF models: what they are, the packaged reference, models made on demand, models fetched.

May touch model files and the cache directory; knows nothing of campaigns, engines or Hydra.
"""

from __future__ import annotations

from harness.models.gguf_info import ModelInfo, model_info
from harness.models.resolve import ModelFile, NotMadeError, resolve_model

__all__ = ["ModelFile", "ModelInfo", "NotMadeError", "model_info", "resolve_model"]
