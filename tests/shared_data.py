"""Where published measurements lie, beside a checkout: what some tests compare with."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("MOE_SHARED_DIR", Path(__file__).resolve().parents[2] / "shared"))
DATA = SHARED / "data"
