"""Runs a small campaign as the harness does; a program of its own, so that tests can kill it.

Arguments: campaign directory, launcher, milliseconds per token, spacing in seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cell_parts import FAKE_ENGINE, fake_build, make_arm, make_plan

from harness.device.launcher import Sampling
from harness.errors import HarnessError
from harness.journal import Journal
from harness.measuring import ModelFiles
from harness.session import run_session
from harness.stopping import StopFlag
from harness.targets.local import LocalTarget


def main() -> int:
    campaign_dir, launcher = Path(sys.argv[1]), Path(sys.argv[2])
    token_ms, wait_s = float(sys.argv[3]), float(sys.argv[4])
    arms = [make_arm(name, token_ms=token_ms) for name in ("baseline", "half", "off")]
    stop = StopFlag()
    try:
        with stop.on_signals(), Journal.open(campaign_dir) as journal:
            run_session(
                make_plan(*arms, wait_s=wait_s),
                target=LocalTarget(),
                build=fake_build(launcher),
                model=ModelFiles(FAKE_ENGINE, (FAKE_ENGINE,), None),
                journal=journal,
                on_event=lambda _event: None,
                sampling=Sampling(probe_s=0),
                stop=stop,
            )
    except HarnessError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
