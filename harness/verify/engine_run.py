"""Runs the engine on this machine so that it leaves a dump of one layer."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from harness.engine_env import engine_environment
from harness.errors import DeviceError, UsageError

# exit codes of the engine that are about what it was asked, not about how it went
REFUSALS = (2, 3, 4)


def dump_layer(engine: Path, model: Path, layer: int, prefix: str, flags: Sequence[str]) -> None:
    """Decode with `flags`, the prompt's among them, dumping to `PREFIX.*.LAYER`.

    UsageError when the engine refuses, DeviceError when it fails; both with its own line.
    """
    command = [
        *(str(engine), "-m", str(model), "--no-eog"),
        *("--moe-dump", f"il={layer}:{prefix}", *flags),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            env=engine_environment(),
        )
    except OSError as e:
        raise UsageError(f"{engine}: cannot be run on this machine ({e.strerror})") from e
    if done.returncode == 0:
        return
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    said = next((line for line in reversed(lines) if "error:" in line), lines[-1] if lines else "")
    said = said.partition("error: ")[2] or said or f"exit code {done.returncode}"
    kind = UsageError if done.returncode in REFUSALS else DeviceError
    raise kind(f"the engine: {said}")
