"""The course of a campaign, from a command line's overrides to its exit code.

It decides the order of things, so that whatever can be refused
is refused before anything starts: configuration, where to write, texts, the model, the engine,
and the engine's own opinion of every arm. After the first cell nothing that fails loses a record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import rundir
from harness.campaign.device import ask_device, connect, make_ready
from harness.campaign.foresight import PLAN_ONLY, Foresight, show
from harness.campaign.inputs import binaries, check_given, check_routes, model_file, texts
from harness.campaign.parts import Campaign, Member
from harness.campaign.sinks import draw_plots, write_page, write_page_of_what_there_is
from harness.campaign.tracker import Tracker, both
from harness.configure import check, compose, load_yaml, overridden, resolved, to_yaml
from harness.errors import DeviceError, Interrupted, UsageError
from harness.judgement import CREATED, config_sha256, stored_plan
from harness.memory_config import as_said_now
from harness.plan import make_plan
from harness.tracking_store import without_password
from harness.tracking_text import without_credentials
from harness.validation import check_config

if TYPE_CHECKING:
    from harness.device.readiness import Readiness
    from harness.models import ModelFile
    from harness.planned import Plan
    from harness.records import CellRecord, TargetId
    from harness.report.terminal import Terminal
    from harness.verdicts import CampaignVerdict


def run(overrides: Sequence[str], member: Member | None = None) -> int:
    """Run, or resume, the campaign that the overrides describe; the process's exit code.

    `member`: where it is one of a sweep's.
    """
    from harness.report.terminal import Terminal

    data = compose(overrides)
    with contextlib.ExitStack() as at_end:
        view = Terminal()
        at_end.callback(view.close)
        prepare = _resume if data["resume"] is not None else _start
        campaign = prepare(data, overrides, view, at_end, member or Member())
        return 0 if campaign is None else _carry_out(campaign, view)


# --- before the first cell -----------------------------------------------------------------------


def _start(
    data: dict[str, Any],
    overrides: Sequence[str],
    view: Terminal,
    at_end: contextlib.ExitStack,
    member: Member,
) -> Campaign | None:
    """A new campaign, or None when only its plan was asked for."""
    from harness.device.opening import cores_of

    config = check(data)
    runs_dir = Path(config.runs_dir)
    if config.plan_only:
        show(Foresight(view).of(data), view)
        view.say(PLAN_ONLY)
        return None
    rundir.check_runs_dir(runs_dir)
    named, engines = texts(config), binaries(config)
    check_routes(config)
    model = model_file(config, view.progress)
    target, machine = connect(config, view, at_end)
    plan = make_plan(config, model.info, cores_of(machine), named, engines)
    name = rundir.new_id(config.name)
    deployed = make_ready(
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
        member=member,
    )
    readiness = ask_device(campaign, view)
    rundir.make_campaign_dir(runs_dir, name)
    with rundir.disk_errors(campaign.directory):
        write_first_files(campaign, readiness)
    member.began(campaign.directory)
    view.say(f"campaign {campaign.directory}")
    _show_plan(plan, model, runs_dir, target.id, view)
    return campaign


def _resume(
    data: dict[str, Any],
    overrides: Sequence[str],
    view: Terminal,
    at_end: contextlib.ExitStack,
    member: Member,
) -> Campaign | None:
    """A campaign as it was stored. Raises UsageError when the command line asks for another one."""
    directory = rundir.find_campaign(str(data["resume"]), Path(str(data["runs_dir"])))
    stored = as_said_now(load_yaml(directory / rundir.CONFIG))
    if isinstance(stored, Mapping) and "import" in stored:
        raise UsageError(f"resume={data['resume']}: was imported; there is nothing to run in it")
    config = check_config(stored)
    wanted = resolved(data) if data["cells"] else overridden(stored, overrides)
    changed = rundir.difference(without_password(stored), without_password(wanted))
    if changed:
        raise UsageError(
            f"resume={data['resume']}: the configuration differs from the campaign's: "
            f"{'; '.join(changed)}; leave the change out, or start a new campaign"
        )
    uri = wanted["tracking"]["uri"]  # maybe with the password, which is not stored
    config = replace(config, tracking=replace(config.tracking, uri=uri))
    plan = stored_plan(directory)
    check_given(plan)
    check_routes(config)
    model = model_file(config, view.progress)
    if data["plan_only"]:
        _show_plan(plan, model, directory.parent, None, view)
        return None
    target, machine = connect(config, view, at_end)
    deployed = make_ready(
        config,
        target,
        machine,
        directory=directory,
        plan=plan,
        model=model,
        view=view,
        at_end=at_end,
    )
    campaign = Campaign(
        directory,
        config,
        stored,
        plan,
        target,
        deployed,
        model,
        tuple(overrides),
        member,
    )
    ask_device(campaign, view)
    view.say(f"campaign {directory}, resumed")
    return campaign


def _show_plan(
    plan: Plan, model: ModelFile, runs_dir: Path, target: TargetId | None, view: Terminal
) -> None:
    from harness.history import expected_seconds

    view.plan(plan, model.name, expected_seconds(runs_dir, plan, model.sha256, target))


def write_first_files(campaign: Campaign, readiness: Readiness) -> None:
    """Environment, configuration, journal's first event, plan. The directory exists.

    No password is in any of them: what is written of a command line is written here.
    """
    from harness.device.deploy import cell_engines
    from harness.device.environment import describe_environment
    from harness.journal import Journal, write_atomically, write_json

    directory, deployed = campaign.directory, campaign.deployed
    environment = describe_environment(
        target=campaign.target,
        model_path=deployed.model_files[0],
        model_bytes=campaign.model_bytes,
        model_sha256=campaign.model.sha256,
        engine_build_id=deployed.build.build_id,
        engine_version=deployed.build.version,
        cell_engines=cell_engines(campaign.plan, deployed),
        runs_dir=directory.parent,
        work_dir=readiness.work_dir,
        page_bytes=readiness.page_bytes,
        settings=deployed.settings,
        preflight=readiness.findings,
    )
    config = to_yaml(without_password(campaign.data))
    write_atomically(directory / rundir.CONFIG, config.encode())
    write_json(directory / rundir.ENVIRONMENT, environment)
    if campaign.member.sweep is not None:
        write_json(directory / rundir.SWEEP, campaign.member.sweep)
    with Journal.open(directory) as journal:
        journal.append(
            CREATED,
            overrides=[without_credentials(w) for w in campaign.overrides],  # a resume has others
            config_sha256=config_sha256(load_yaml(directory / rundir.CONFIG)),
        )
    write_json(directory / rundir.PLAN, campaign.plan)  # last: with it it can be resumed


# --- from the first cell on ----------------------------------------------------------------------


def _carry_out(campaign: Campaign, view: Terminal) -> int:
    """Measure, judge, record, show. What fails after a cell was measured keeps that cell."""
    directory = campaign.directory
    again = f"resume with: {rundir.resume_command(directory)}"
    with contextlib.closing(Tracker(campaign, view)) as tracker:
        try:
            with rundir.disk_errors(directory):
                records = _measure(campaign, view, tracker)
                verdict = _judge(campaign, records)
            view.results(records)
            view.verdict(verdict)
            with view.doing("drawing plots"):
                draw_plots(campaign, records, verdict, view)
            with view.doing("writing the report"):
                write_page(campaign, records, verdict, view)
            with view.doing("logging"):
                tracker.finish()
        except Interrupted as e:
            write_page_of_what_there_is(campaign, view)
            tracker.finish_early()
            raise Interrupted(
                f"{str(e).partition(';')[0]}; what was measured is kept; {again}"
            ) from e
        except KeyboardInterrupt as e:
            raise Interrupted(f"interrupted; what was measured is kept; {again}") from e
        except DeviceError as e:
            write_page_of_what_there_is(campaign, view)
            tracker.finish_early()
            raise DeviceError(f"{e}; {again}") from e
    view.say(f"everything measured: {directory}/")
    return 0 if all(r.is_result for r in records) else 1


def _measure(campaign: Campaign, view: Terminal, tracker: Tracker) -> list[CellRecord]:
    from harness.device.launcher import Sampling
    from harness.history import expected_seconds
    from harness.journal import Journal
    from harness.judgement import Measured
    from harness.measuring import ModelFiles
    from harness.session import run_session
    from harness.steering import Steering
    from harness.stopping import StopFlag

    deployed, stop = campaign.deployed, StopFlag()
    runs_dir, model_sha256 = campaign.directory.parent, campaign.model.sha256
    # of a campaign that is resumed also what its own cells took
    took = expected_seconds(runs_dir, campaign.plan, model_sha256, campaign.target.id)
    view.begin(campaign.plan, took)
    campaign.target.heed(stop.nap)
    files = ModelFiles(deployed.model, deployed.model_files, campaign.model.sha256)
    steering = Steering(
        Measured.read(campaign.directory),
        stop_when_decided=bool(campaign.config.design.stop_when_decided),
        on_pair=both(view.standings, tracker.standings),
    )
    with stop.on_signals(), Journal.open(campaign.directory) as journal:
        if not journal.events:  # an older version was killed before: what made it is not known
            journal.append(CREATED, overrides=None)
        with view.doing("getting ready to log"):
            tracker.start(stop)  # with the journal: that it is held shows others that this runs
        return run_session(
            campaign.plan,
            target=campaign.target,
            build=deployed.build,
            given=deployed.given,
            model=files,
            journal=journal,
            on_event=campaign.member.heard(both(view.event, tracker.event)),
            sampling=Sampling(probe_s=campaign.config.schedule.probe_s),
            evict_page_cache=campaign.config.schedule.drop_page_cache,
            wants=steering.wants,
            inputs=deployed.inputs,
            gate=campaign.config.schedule.gate,
            limits=campaign.config.session,
            stop=stop,
            earlier=campaign.member.earlier(campaign.config.schedule.spacing_s),
        )


def _judge(campaign: Campaign, records: Sequence[CellRecord]) -> CampaignVerdict:
    from harness.journal import write_json
    from harness.judgement import Measured, judge

    verdict = judge(Measured.read(campaign.directory), records)
    write_json(campaign.directory / rundir.VERDICT, verdict)
    return verdict
