"""From the files that a cell left behind to its record. Reads directories, writes nothing.

The same files give the same record, so a campaign can be read again without the device.
"""

from __future__ import annotations

import dataclasses
import hashlib
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis.device_course import DeviceCourse, device_course
from harness.analysis.outputs import Output
from harness.analysis.series import Series, series_of
from harness.build.types import EngineBuild, EngineFile
from harness.device.launcher import LauncherResult, last_word, read_result
from harness.device.sentinel import excursions
from harness.engines import native
from harness.errors import DeviceError, UsageError
from harness.journal import JOURNAL, RECORD, altered_cells, finished_cells, read_journal
from harness.planned import Arm, PlannedCell
from harness.records import CellRecord, CellStatus, Metrics, TargetId, Wait
from harness.session_config import SessionConfig
from harness.words import counted

STDOUT = "stdout.txt"
DEVICE = "device.csv"

# The engine's executable and the C library are in the page cache from one cell to the next.
UNCHARGED_ALLOWED_BYTES = 16 * 2**20


def collect_cell(
    cell_dir: Path,
    cell: PlannedCell,
    arm: Arm,
    *,
    engine_argv: list[str],
    target: TargetId,
    model_sha256: str | None,
    wait: Wait,
    limits: SessionConfig | None = None,
    engine: EngineBuild | EngineFile | None = None,
) -> CellRecord:
    """The record of a cell whose launcher has ended; `limits`: what it must stay within.

    `engine`: the one that ran, where that is known.

    A file that is not there was not written: what it would have said is None. Raises DeviceError
    when the result is unreadable, or the samples could not be kept: then the cell is not whole.
    """
    result = read_result(cell_dir)
    if result is not None and result.samples_error is not None:
        place = str(cell_dir) if target.kind == "local" else f"{target.name}: cell {cell.name}"
        raise DeviceError(
            f"{place}: the launcher could not keep samples there: {result.samples_error}"
        )
    telemetry = native.read_telemetry(_content(cell_dir / native.TELEMETRY))
    rows = native.read_tokens(_content(cell_dir / native.TOKENS))
    outcome = native.understand(arm, telemetry, rows)
    complaint = native.complaint(_content(cell_dir / "stderr.txt"))
    problems = outcome.problems + _cgroup_problems(arm, result)
    problems += _other_engine(arm, outcome.identity.engine_build_id, engine)
    status, detail = judge(result, problems, complaint)
    if result is None:
        detail = ": ".join(text for text in (detail, last_word(cell_dir)) if text)
    result = result or LauncherResult("failed")
    text = arm.text or arm.perplexity
    return CellRecord(
        cell=cell.name,
        arm=cell.arm,
        role=cell.role,
        index=cell.index,
        status=status,
        exit_code=result.exit_code,
        argv=tuple(engine_argv),
        target=target,
        entry=result.entry,
        exit=result.exit,
        probe=result.probe,
        counters=outcome.counters,
        metrics=_with_machine(outcome.metrics, result, arm.data_limit_bytes),
        identity=dataclasses.replace(
            outcome.identity,
            model_sha256=model_sha256,
            engine_sha256=None if engine is None else engine.sha256,
            text_sha256=None if text is None else text.sha256,
            prompt_sha256=None
            if arm.perplexity
            else hashlib.sha256(arm.prompt.encode()).hexdigest(),
        ),
        level=arm.level,
        binary=arm.binary,
        arena=outcome.arena,
        budget=outcome.budget,
        perplexity=outcome.perplexity,
        prediction=outcome.prediction,
        predictor_disarmed=outcome.predictor_disarmed,
        forced_routes=outcome.forced_routes,
        output_sha256=outcome.output_sha256,
        wait=wait,
        started_unix_s=result.started_unix_s,
        ended_unix_s=result.ended_unix_s,
        data_limit_bytes=arm.data_limit_bytes,
        cgroup=result.cgroup,
        status_detail=detail,
        excursions=None if limits is None else excursions(_content(cell_dir / DEVICE), limits),
    )


# --- the cells of a campaign ---------------------------------------------------------------------


@dataclass(frozen=True)
class Sound:
    """Records that can be relied on, and what every token took, by cell index.

    `damaged`: what is wrong with the finished cells that are not among them.
    """

    records: dict[int, CellRecord]
    series: dict[int, Series | None]
    damaged: dict[int, str]


def sound_cells(directory: Path) -> Sound:
    """Of the campaign in `directory`, as all judge, show and log them.

    Raises UsageError (no journal) and DeviceError (it is damaged).
    """
    journal = directory / JOURNAL
    if not journal.is_file():
        raise UsageError(
            f"{journal}: there is no such file, and nothing else says which cells were finished; "
            "restore it"
        )
    events = read_journal(directory)
    if not events and any(directory.glob(f"cells/*/{RECORD}")):
        raise UsageError(f"{journal}: is empty, but there are cells; restore it")
    found = finished_cells(directory, events)
    damaged = dict(found.damaged)
    series: dict[int, Series | None] = {}
    for index, record in found.records.items():
        series[index], wrong = read_series_of(cell_dir_of(directory, record), record)
        if wrong is not None:
            damaged[index] = wrong
    damaged = altered_cells(directory, events) | damaged
    sound = {i: r for i, r in sorted(found.records.items()) if i not in damaged}
    return Sound(sound, series, damaged)


def cell_dir_of(directory: Path, record: CellRecord) -> Path:
    """Where a cell's files are, in its campaign's directory."""
    return directory / "cells" / f"{record.index:02d}-{record.cell}"


def read_output(cell_dir: Path, record: CellRecord) -> Output | None:
    """What the cell of `record` generated; None when it is not there, or not whole."""
    ids = native.read_ids(_content(cell_dir / native.TELEMETRY))
    if not ids or native.ids_sha256(ids) != record.output_sha256:
        return None
    if not (cell_dir / STDOUT).is_file():  # lost: that is no other output
        return None
    return Output(ids, _content(cell_dir / STDOUT))


def read_series(cell_dir: Path) -> Series | None:
    """What every token of the cell took; None when that was not recorded for all of them."""
    return series_of(native.read_tokens(_content(cell_dir / native.TOKENS)))


def read_series_of(cell_dir: Path, record: CellRecord) -> tuple[Series | None, str | None]:
    """As `read_series`, and why the table is not the one that the record was made from.

    The latter is None also where there never was a table.
    """
    path = cell_dir / native.TOKENS
    rows = native.read_tokens(_content(path))
    return series_of(rows), _not_of_record(path, rows, record)


def _not_of_record(path: Path, rows: Sequence[native.Row], record: CellRecord) -> str | None:
    if record.status != "ok":
        return None
    if not rows:  # the record has what only rows can give
        gone = record.metrics.wall_ms_median is not None
        return f"{path}: is gone, or empty" if gone else None
    if record.counters.tokens is not None and len(rows) != record.counters.tokens:
        return f"{path}: {counted(len(rows), 'row')} of {counted(record.counters.tokens, 'token')}"
    walls = [row.get("wall_ms") for row in rows]
    whole = [w for w in walls if w is not None and w > 0]
    if len(whole) < len(walls):
        return f"{path}: {counted(len(walls) - len(whole), 'token')} without a wall time"
    speed, stored = len(whole) / sum(whole) * 1e3, record.metrics.tok_s
    if stored is not None and abs(speed - stored) > native.RATE_TOLERANCE * stored:
        return f"{path}: its {speed:.3f} tok/s are not the {stored:.3f} of record.json"
    return None


def read_device(cell_dir: Path) -> DeviceCourse | None:
    """The device while the cell ran; None when that was not sampled."""
    return device_course(native.read_tokens(_content(cell_dir / DEVICE)))


def judge(
    result: LauncherResult | None, problems: tuple[str, ...], complaint: str | None
) -> tuple[CellStatus, str | None]:
    """A cell's status, and in words why it is not `ok`.

    `problems` is what makes a run that ended well another run than the one asked for; `complaint`
    is the engine's own error line.
    """
    if result is None:
        return "failed", "the launcher wrote no result"
    detail = ": ".join(text for text in (result.status_detail, complaint) if text) or result.status
    if result.status == "killed" or result.signal == signal.SIGKILL:
        return "killed", detail
    if result.exit_code == native.EXIT_REFUSED:
        return "refused", complaint or detail
    if result.status != "ok":
        return "failed", detail
    if problems:
        return "failed", "; ".join(problems)
    return "ok", None


def _other_engine(
    arm: Arm, said: str | None, engine: EngineBuild | EngineFile | None
) -> tuple[str, ...]:
    """Of a cell with an engine of its own, which may be a script that starts another one."""
    if arm.binary is None or engine is None or said in (None, engine.build_id):
        return ()
    path, asked = arm.binary.path, engine.build_id
    return (f"{path} called itself build {asked}, the engine that it ran is build {said}",)


def _cgroup_problems(arm: Arm, result: LauncherResult | None) -> tuple[str, ...]:
    """Why a cgroup limit that was in force did not limit the cell, where it was required."""
    cgroup = None if result is None else result.cgroup
    uncharged = 0 if cgroup is None else cgroup.uncharged_bytes or 0
    if arm.cgroup_mode != "required" or uncharged <= UNCHARGED_ALLOWED_BYTES:
        return ()
    return (
        f"{uncharged} bytes that it used were in the page cache before the cell began and so not "
        "limited by its cgroup; use schedule.drop_page_cache=true, and end what else uses them",
    )


def _with_machine(metrics: Metrics, result: LauncherResult, limit: int | None) -> Metrics:
    """Adds what the launcher saw of memory, of contention for the cores, and of its own cost."""
    peak = result.anon_peak_bytes

    def share(seconds: float | None) -> float | None:
        return seconds / result.wall_s if seconds is not None and result.wall_s else None

    return dataclasses.replace(
        metrics,
        anon_peak_bytes=peak,
        rss_peak_bytes=result.rss_peak_bytes,
        anon_within_limit=None if limit is None or peak is None else peak <= limit,
        sampler_cpu_share=result.sampler_cpu_share,
        cpu_wait_share=share(result.cpu_wait_s),
        cpu_throttled_share=share(result.cpu_throttled_s),
        neighbour_cpu_share=share(result.neighbour_cpu_s),
        steal_cpu_share=share(result.steal_cpu_s),
    )


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
