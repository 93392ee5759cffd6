"""What the tests of models in the real engine share: the engine, and ways to run it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from harness.build import ensure_engine
from harness.models import ModelInfo

PROMPT = "In the beginning was the word"


def engine() -> Path:
    """The engine from the user's cache, built when it is not there yet (minutes).

    MOE_ENGINE names one that is there already, such as one built with sanitizers.
    """
    given = os.environ.get("MOE_ENGINE")
    return Path(given) if given else ensure_engine().engine


def run(
    program: Path,
    model: Path,
    folder: Path,
    *flags: str,
    prompt: str = PROMPT,
    tokens: int = 8,
    batch: int = 16,
) -> dict[str, dict[str, Any]]:
    """Generates `tokens`; the telemetry's records by type (of the tokens, the last)."""
    telemetry = folder / "telemetry.jsonl"
    telemetry.unlink(missing_ok=True)
    command = [
        *(str(program), "-m", str(model), "-p", prompt, "-n", str(tokens)),
        *("-c", "256", "-b", str(batch), "-t", "1"),
        *("--no-eog", "--logits-digest", "--telemetry", str(telemetry), *flags),
    ]
    done = subprocess.run(command, capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:].decode(errors="replace")
    records = [json.loads(line) for line in telemetry.read_text().splitlines()]
    assert sum(r["type"] == "token" for r in records) == tokens
    return {r["type"]: r for r in records}


def outputs(records: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """Digests of the text and of all logits."""
    summary = records["summary"]
    return summary["ids_sha256"], summary["logits_sha256"]


def facts_agree(info: ModelInfo, said: dict[str, Any]) -> None:
    """What the harness reads in a model's header is what the engine says of it."""
    for name in (
        *("arch", "n_layer", "n_moe_layer", "n_expert", "n_expert_used", "n_embd", "n_vocab"),
        *("expert_bytes", "expert_bytes_max", "dense_bytes", "file_bytes"),
    ):
        assert said[name] == getattr(info, name), name
