"""Runs a small campaign on a device over ssh as the harness does, from its transfer to its end; a
program of its own, so that tests can kill it, cut it off and interrupt it.

Its one argument is JSON: `campaign` and `cache` (directories), `launcher`, `model` (a file that is
sent), `target` (of SshConfig), `arms` (name: behaviour of the fake engine), `n_predict`, `wait_s`,
`wait_for_device_s`, `time_limit_s`, `pause_at` (stops itself, once, when so many bytes of the
model are there).
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cell_parts import fake_build, make_arm, make_plan

from harness.device.claim import claim, owner_of
from harness.device.deploy import deploy, deploy_launcher
from harness.device.launcher import Sampling
from harness.device.opening import open_target
from harness.errors import HarnessError
from harness.journal import Journal
from harness.measuring import ModelFiles
from harness.session import run_session
from harness.stopping import StopFlag
from harness.target_config import SshConfig


def say(*words: object) -> None:
    print(*words, file=sys.stderr, flush=True)


def sent(model: str, pause_at: int | None) -> Callable[[str, int, int], None]:
    pauses = [] if pause_at is None else [pause_at]

    def tell(name: str, done: int, total: int) -> None:
        say("sent", name, done, total)
        if pauses and name == model and done >= pauses[0]:
            pauses.clear()
            os.kill(os.getpid(), signal.SIGSTOP)

    return tell


def measure(asked: dict[str, Any]) -> None:
    campaign, model = Path(asked["campaign"]), Path(asked["model"])
    arms = [
        dataclasses.replace(
            make_arm(name, asked["n_predict"], **behaviour), time_limit_s=asked["time_limit_s"]
        )
        for name, behaviour in asked["arms"].items()
    ]
    target = open_target(
        SshConfig(**asked["target"]),
        say=say,
        on_transfer=sent(model.name, asked["pause_at"]),
    )
    try:
        build = deploy_launcher(target, fake_build(Path(asked["launcher"])))
        claim(target, owner_of(campaign), wait_s=asked["wait_for_device_s"], say=say)
        deployed = deploy(
            target, build, model=model, model_files=(model,), arms=arms, cache_dir=asked["cache"]
        )
        stop = StopFlag()
        target.heed(stop.nap)
        with stop.on_signals(), Journal.open(campaign) as journal:
            run_session(
                make_plan(*arms, wait_s=asked["wait_s"]),
                target=target,
                build=deployed.build,
                model=ModelFiles(deployed.model, deployed.model_files, None),
                journal=journal,
                on_event=lambda _event: None,
                sampling=Sampling(probe_s=0),
                stop=stop,
            )
    finally:
        target.close()


def main() -> int:
    try:
        measure(json.loads(sys.argv[1]))
    except HarnessError as e:
        say(f"error: {e}")
        return e.exit_code
    except KeyboardInterrupt:  # as harness/cli.py, before the session
        say("error: interrupted before anything was measured")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
