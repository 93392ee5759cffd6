"""The composition root: from a command line's overrides to a measured, judged, recorded campaign.

The only place that knows all parts. It decides the order of things, so that whatever can be refused
is refused before anything starts: configuration, where to write, texts, the model, the engine,
and the engine's own opinion of every arm. After the first cell nothing that fails loses a record.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import rundir
from harness.configure import check, compose, load_yaml, overridden, resolved, to_yaml
from harness.errors import DeviceError, Interrupted, UsageError
from harness.judgement import CREATED, stored_plan
from harness.plan import make_plan
from harness.schema import Config, check_config
from harness.target_config import check_target

if TYPE_CHECKING:
    from harness.build import EngineBuild
    from harness.device.deploy import Deployed
    from harness.device.opening import Machine
    from harness.device.readiness import Readiness
    from harness.models import ModelFile
    from harness.records import CellRecord, GivenText, Plan
    from harness.report.terminal import Terminal
    from harness.targets.target import Target
    from harness.verdicts import CampaignVerdict


# what names a text, of a cell and of its arm
_TEXT_KEYS = ("text", "perplexity")
PLAN_ONLY = "plan only: nothing was run, and the engine was not asked whether it fits"


@dataclass(frozen=True)
class Campaign:
    """Everything a session needs; `directory` exists and holds configuration, plan, environment."""

    directory: Path
    config: Config
    data: dict[str, Any]  # the resolved configuration as plain data
    plan: Plan
    target: Target
    deployed: Deployed
    model: ModelFile
    overrides: tuple[str, ...]  # of the command line that started or resumes it

    @property
    def model_bytes(self) -> int:
        """Of all its shards, which are here, too."""
        return sum(path.stat().st_size for path in self.model.info.shards)


def run(overrides: Sequence[str]) -> int:
    """Run, or resume, the campaign that the overrides describe; the process's exit code."""
    from harness.report.terminal import Terminal

    data = compose(overrides)
    with contextlib.ExitStack() as at_end:
        view = Terminal()
        at_end.callback(view.close)
        prepare = _resume if data["resume"] is not None else _start
        campaign = prepare(data, overrides, view, at_end)
        return 0 if campaign is None else _carry_out(campaign, view)


# --- before the first cell -----------------------------------------------------------------------


def _start(
    data: dict[str, Any], overrides: Sequence[str], view: Terminal, at_end: contextlib.ExitStack
) -> Campaign | None:
    """A new campaign, or None when only its plan was asked for."""
    from harness.device.opening import cores_of
    from harness.models import NotMadeError

    config = check(data)
    runs_dir = Path(config.runs_dir)
    if not config.plan_only:
        rundir.check_runs_dir(runs_dir)
    texts = _texts(config)
    _check_routes(config)
    try:
        model = _model(config)
    except NotMadeError as e:  # only where nothing is to be made
        _show_plan_before_model(config, e.name, texts, view)
        return None
    target, machine = _connect(config, view, at_end)
    plan = make_plan(config, model.info, cores_of(machine), texts)
    if config.plan_only:
        _show_plan(plan, model, runs_dir, view)
        view.say(PLAN_ONLY)
        return None
    name = rundir.new_id(config.name)
    deployed = _deploy(
        config,
        target,
        machine,
        directory=runs_dir / name,
        plan=plan,
        model=model,
        view=view,
        at_end=at_end,
    )
    campaign = Campaign(
        directory=runs_dir / name,
        config=config,
        data=resolved(data),
        plan=plan,
        target=target,
        deployed=deployed,
        model=model,
        overrides=tuple(overrides),
    )
    readiness = _check_device(campaign, view)
    rundir.make_campaign_dir(runs_dir, name)
    with rundir.disk_errors(campaign.directory):
        _write_first_files(campaign, readiness)
    view.say(f"campaign {campaign.directory}")
    _show_plan(plan, model, runs_dir, view)
    return campaign


def _resume(
    data: dict[str, Any], overrides: Sequence[str], view: Terminal, at_end: contextlib.ExitStack
) -> Campaign | None:
    """A campaign as it was stored. Raises UsageError when the command line asks for another one."""
    directory = rundir.find_campaign(str(data["resume"]), Path(str(data["runs_dir"])))
    stored = load_yaml(directory / rundir.CONFIG)
    if isinstance(stored, Mapping) and "import" in stored:
        raise UsageError(f"resume={data['resume']}: was imported; there is nothing to run in it")
    config = check_config(stored)
    wanted = resolved(data) if data["cells"] else overridden(stored, overrides)
    changed = rundir.difference(stored, wanted)
    if changed:
        raise UsageError(
            f"resume={data['resume']}: the configuration differs from the campaign's: "
            f"{'; '.join(changed)}; leave the change out, or start a new campaign"
        )
    plan = stored_plan(directory)
    _check_texts(plan)
    _check_routes(config)
    model = _model(config)
    if data["plan_only"]:
        _show_plan(plan, model, directory.parent, view)
        return None
    target, machine = _connect(config, view, at_end)
    deployed = _deploy(
        config,
        target,
        machine,
        directory=directory,
        plan=plan,
        model=model,
        view=view,
        at_end=at_end,
    )
    campaign = Campaign(directory, config, stored, plan, target, deployed, model, tuple(overrides))
    _check_device(campaign, view)
    view.say(f"campaign {directory}, resumed")
    return campaign


def _connect(
    config: Config, view: Terminal, at_end: contextlib.ExitStack
) -> tuple[Target, Machine | None]:
    """The device, let go at the end whatever happens; and the machine that it is."""
    from harness.device.opening import machine_of, open_target
    from harness.models.cli import ProgressLine
    from harness.models.resolve import ModelProgress

    progress = ProgressLine()

    def say(line: str) -> None:
        progress.close()
        view.say(line, "yellow")

    target = open_target(
        check_target(config.target),
        say=say,
        on_transfer=lambda name, done, total: progress(
            ModelProgress(f"sending {name}", done, total)
        ),
    )
    at_end.callback(progress.close)
    at_end.callback(target.close)
    return target, machine_of(target)


def _deploy(
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

    build = deploy_launcher(target, _engine(config, target, machine))
    claim(target, owner_of(directory), wait_s=config.session.wait_for_device_s, say=view.say)
    phone = Phone(check_target(config.target), target, lambda line: view.say(line, "yellow"))
    at_end.callback(phone.put_back)
    settings = phone.prepare()
    return deploy(
        target,
        build,
        model=model.path,
        model_files=model.info.shards,
        arms=plan.arms.values(),
        cache_dir=config.engine.cache_dir,
        settings=settings,
    )


def _show_plan(plan: Plan, model: ModelFile, runs_dir: Path, view: Terminal) -> None:
    from harness.history import expected_seconds

    view.plan(plan, model.name, expected_seconds(runs_dir, plan, model.sha256))


def _show_plan_before_model(
    config: Config, model_name: str, texts: Mapping[str, GivenText], view: Terminal
) -> None:
    """A fraction of the experts has no size until the model's file says how large they are."""
    plan = make_plan(config, None, os.cpu_count() or 1, texts)
    view.plan(plan, model_name, {})
    fractions = {name: cell.engine.cache_fraction for name, cell in config.cells.items()}
    asked = [f"{name} {f:g} of the experts" for name, f in fractions.items() if f is not None]
    unknown = f"; the cache in MiB is not known until then: {', '.join(asked)}" if asked else ""
    if config.memory.levels is not None:
        unknown += "; the levels, shares of its file, are not known in MiB until then"
    view.say(f"model {model_name}: not made yet, a run makes it first{unknown}")
    view.say(PLAN_ONLY)


def _texts(config: Config) -> dict[str, GivenText]:
    from harness.models.text import given_text

    named = {
        f"cells.{name}.{key}": getattr(cell, key)
        for name, cell in config.cells.items()
        for key in _TEXT_KEYS
    }
    return {text: given_text(text, key) for key, text in named.items() if text is not None}


def _check_routes(config: Config) -> None:
    for name, cell in config.cells.items():
        if cell.engine.forced_routes is None:
            continue
        path = Path(cell.engine.forced_routes).absolute()
        if not path.is_file():
            wrong = "is not a file" if path.exists() else "there is no such file"
            raise UsageError(
                f"cells.{name}.engine.forced_routes: {path}: {wrong}; "
                "give a recorded route trace, or null"
            )


def _check_texts(plan: Plan) -> None:
    """A resumed campaign decodes and scores the texts that it began with."""
    from harness.models.text import given_text

    for name, arm in plan.arms.items():
        for key in _TEXT_KEYS:
            text: GivenText | None = getattr(arm, key)
            if text is not None and given_text(text.path, f"cells.{name}.{key}") != text:
                raise UsageError(
                    f"cells.{name}.{key}: {text.path} is not what it was when the campaign began; "
                    "restore it, or start a new campaign"
                )


def _model(config: Config) -> ModelFile:
    from harness.models import resolve_model
    from harness.models.cli import ProgressLine

    progress = ProgressLine()
    try:
        return resolve_model(
            config.model,
            cache_dir=config.engine.cache_dir,
            make=not config.plan_only,
            progress=progress,
        )
    finally:
        progress.close()


def _engine(config: Config, target: Target, machine: Machine | None) -> EngineBuild:
    from harness.build import ensure_engine, machine_from
    from harness.build.cli import ProgressLine
    from harness.device.opening import compile_host

    there = None
    if machine is not None:
        there = machine_from(machine.uname, machine.cpuinfo, machine.android)
    engine, progress = config.engine, ProgressLine()
    try:
        return ensure_engine(
            binary=_path(engine.binary),
            launcher=_path(engine.launcher),
            llama_cpp_dir=_path(engine.llama_cpp_dir),
            cache_dir=_path(engine.cache_dir),
            toolchain=config.build.toolchain,
            machine=there,
            ndk_dir=_path(config.build.ndk_dir),
            host=compile_host(target, config.session.wait_for_device_s),
            progress=progress,
        )
    finally:
        progress.close()


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _check_device(campaign: Campaign, view: Terminal) -> Readiness:
    """Let engine, launcher and device refuse now rather than after half a campaign."""
    from harness.analysis.device_state import states_in_order
    from harness.device.readiness import check_device
    from harness.device.suitability import in_words
    from harness.journal import load_records

    with rundir.disk_errors(campaign.directory):
        done = load_records(campaign.directory) if campaign.directory.exists() else []
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


def _write_first_files(campaign: Campaign, readiness: Readiness) -> None:
    from harness.device.environment import describe_environment
    from harness.journal import write_atomically, write_json

    directory, deployed = campaign.directory, campaign.deployed
    environment = describe_environment(
        target=campaign.target,
        model_path=deployed.model_files[0],
        model_bytes=campaign.model_bytes,
        model_sha256=campaign.model.sha256,
        engine_build_id=deployed.build.build_id,
        engine_version=deployed.build.version,
        runs_dir=directory.parent,
        work_dir=readiness.work_dir,
        page_bytes=readiness.page_bytes,
        settings=deployed.settings,
        preflight=readiness.findings,
    )
    write_atomically(directory / rundir.CONFIG, to_yaml(campaign.data).encode())
    write_json(directory / rundir.ENVIRONMENT, environment)
    write_json(directory / rundir.PLAN, campaign.plan)  # last: with it it can be resumed


# --- from the first cell on ----------------------------------------------------------------------


def _carry_out(campaign: Campaign, view: Terminal) -> int:
    """Measure, judge, record, show. What fails after a cell was measured keeps that cell."""
    directory = campaign.directory
    again = f"resume with: {rundir.resume_command(directory)}"
    try:
        with rundir.disk_errors(directory):
            records = _measure(campaign, view)
            verdict = _judge(campaign, records)
        view.results(records)
        view.verdict(verdict)
        _draw(campaign, records, verdict, view)
        _track(campaign, view)
    except Interrupted as e:
        _track_what_there_is(campaign, view)
        raise Interrupted(f"{str(e).partition(';')[0]}; what was measured is kept; {again}") from e
    except KeyboardInterrupt as e:
        raise Interrupted(f"interrupted; what was measured is kept; {again}") from e
    except DeviceError as e:
        _track_what_there_is(campaign, view)
        raise DeviceError(f"{e}; {again}") from e
    view.say(f"everything measured: {directory}/")
    return 0 if all(r.is_result for r in records) else 1


def _measure(campaign: Campaign, view: Terminal) -> list[CellRecord]:
    from harness.device.launcher import Sampling
    from harness.journal import Journal
    from harness.judgement import Measured
    from harness.session import ModelFiles, run_session
    from harness.steering import Steering
    from harness.stopping import StopFlag

    deployed, stop = campaign.deployed, StopFlag()
    campaign.target.heed(stop.nap)
    files = ModelFiles(deployed.model, deployed.model_files, campaign.model.sha256)
    steering = Steering(
        Measured.read(campaign.directory),
        stop_when_decided=bool(campaign.config.design.stop_when_decided),
        on_pair=view.standings,
    )
    with stop.on_signals(), Journal.open(campaign.directory) as journal:
        if not journal.events:
            journal.append(CREATED, overrides=campaign.overrides)
        return run_session(
            campaign.plan,
            target=campaign.target,
            build=deployed.build,
            model=files,
            journal=journal,
            on_event=view.event,
            sampling=Sampling(probe_s=campaign.config.schedule.probe_s),
            evict_page_cache=campaign.config.schedule.drop_page_cache,
            wants=steering.wants,
            inputs=deployed.inputs,
            gate=campaign.config.schedule.gate,
            limits=campaign.config.session,
            stop=stop,
        )


def _judge(campaign: Campaign, records: Sequence[CellRecord]) -> CampaignVerdict:
    from harness.journal import write_json
    from harness.judgement import Measured, judge

    verdict = judge(Measured.read(campaign.directory), records)
    write_json(campaign.directory / rundir.VERDICT, verdict)
    return verdict


def _draw(
    campaign: Campaign, records: Sequence[CellRecord], verdict: CampaignVerdict, view: Terminal
) -> None:
    """Plots beside the records. What goes wrong there costs one line, never the campaign."""
    from harness.judgement import Measured
    from harness.verbs.report import draw

    try:
        draw(Measured.read(campaign.directory), records, verdict)
    except Exception as e:  # whatever a plotting library raises
        view.say(f"warning: plots were not drawn: {_first_line(e)}", "yellow")


def _track_what_there_is(campaign: Campaign, view: Terminal) -> None:
    """Log a campaign that ended early. The user is waiting: a second Ctrl-C ends this too."""
    if not campaign.config.tracking.enabled:
        return
    view.say("logging what was measured to MLflow (Ctrl-C skips it)")
    with contextlib.suppress(KeyboardInterrupt):
        _track(campaign, view)


def _track(campaign: Campaign, view: Terminal) -> None:
    """Log to MLflow. Whatever goes wrong there costs one line, never the campaign."""
    tracking = campaign.config.tracking
    if not tracking.enabled:
        return
    from harness.tracking import default_uri, log_campaign
    from harness.tracking_text import without_credentials

    runs_dir = campaign.directory.parent
    try:
        log_campaign(
            campaign.directory,
            uri=tracking.uri,
            runs_dir=runs_dir,
            experiment=campaign.config.name,
        )
    except Exception as e:  # the campaign is on disk; whatever a store does must not undo that
        view.say(f"warning: not logged to MLflow: {_first_line(e)}", "yellow")
        return
    if tracking.uri is None:
        view.say(
            f"compare runs: mlflow ui --backend-store-uri {shlex.quote(default_uri(runs_dir))}"
        )
    else:
        view.say(f"logged to {without_credentials(tracking.uri)}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
