"""What a campaign runs on: connected, taken, filled, asked. Goes through the target."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from harness import rundir
from harness.campaign.inputs import engines_for, say_alike
from harness.campaign.parts import Campaign
from harness.schema import Config
from harness.target_config import check_target

if TYPE_CHECKING:
    from harness.device.deploy import Deployed
    from harness.device.opening import Machine
    from harness.device.readiness import Readiness
    from harness.models import ModelFile
    from harness.planned import Plan
    from harness.report.terminal import Terminal
    from harness.targets.target import Target


def connect(
    config: Config, view: Terminal, at_end: contextlib.ExitStack
) -> tuple[Target, Machine | None]:
    """The device, let go at the end whatever happens; and the machine that it is."""
    from harness.device.opening import machine_of, open_target
    from harness.progress import Step

    def show(name: str, done: int, total: int) -> None:
        whole = Step(f"{name} is there, being checked")
        view.progress(whole if done >= total else Step(f"sending {name}", done, total))

    where = check_target(config.target)
    with view.doing(f"connecting ({where.kind})"):
        target = open_target(where, say=lambda line: view.say(line, "yellow"), on_transfer=show)
        at_end.callback(target.close)
        machine = machine_of(target)
    return target, machine


def make_ready(
    config: Config,
    target: Target,
    machine: Machine | None,
    *,
    directory: Path,
    plan: Plan,
    model: ModelFile,
    view: Terminal,
    at_end: contextlib.ExitStack,
) -> Deployed:
    """Build, take the device for the campaign, put there what it runs, and switch its settings."""
    from harness.device.claim import claim, owner_of
    from harness.device.deploy import deploy, deploy_launcher
    from harness.device.phone import Phone

    engines = engines_for(config, plan, target, machine, view.progress)
    say_alike(plan, engines, lambda line: view.say(line, "yellow"))
    build = deploy_launcher(target, engines.build)
    claim(target, owner_of(directory), wait_s=config.session.wait_for_device_s, say=view.say)
    phone = Phone(check_target(config.target), target, lambda line: view.say(line, "yellow"))
    at_end.callback(phone.put_back)
    settings = phone.prepare()
    deployed = deploy(
        target,
        build,
        given=engines.given,
        model=model.path,
        model_files=model.info.shards,
        arms=plan.arms.values(),
        cache_dir=config.engine.cache_dir,
        settings=settings,
    )
    view.progress.close()
    return deployed


def ask_device(campaign: Campaign, view: Terminal) -> Readiness:
    """Let engine, launcher and device refuse now rather than after half a campaign."""
    from harness.analysis.device_state import states_in_order
    from harness.device.readiness import check_device
    from harness.device.suitability import in_words
    from harness.journal import JOURNAL, load_records

    with rundir.disk_errors(campaign.directory):
        # one that was killed early has a plan and no journal yet
        begun = (campaign.directory / JOURNAL).exists()
        done = load_records(campaign.directory) if begun else []
    with view.doing("asking the device and the engine"):
        readiness = check_device(
            campaign.target,
            campaign.deployed,
            campaign.plan,
            campaign.config,
            campaign_dir=campaign.directory,
            model_bytes=campaign.model_bytes,
            seen=[state for _, state in states_in_order(done)],
        )
    for finding in readiness.warnings:
        view.say(f"warning: {in_words(finding)}", "yellow")
    return readiness
