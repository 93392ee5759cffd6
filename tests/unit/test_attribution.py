"""What carries an effect, on cells of which it is known because they were made so."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from harness.analysis.attribution import (
    Attribution,
    attribution_of,
    with_attribution,
)
from harness.analysis.attribution_words import attribution_table
from harness.analysis.fault_cost import fault_cost, t_quantile
from harness.analysis.series import Array, Series
from harness.analysis.wall_parts import cell_parts
from harness.planned import Plan, PlannedCell
from harness.readings import ProbeResult, Probes
from harness.records import CellRecord, Metrics, TargetId
from harness.verdicts import (
    AttributionRow,
    CampaignVerdict,
    CandidateVerdict,
    Drift,
    PairRow,
)

TOKENS = 64
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Change:
    """What is different about the candidate's tokens."""

    compute: float = 1.0
    read: float = 1.0
    manage_ms: float = 0.0
    faults: float = 0.0  # more of them per token


MS_PER_FAULT = 0.5


def cell_series(change: Change, rng: np.random.Generator, speed: float, style: str) -> Series:
    """Tokens as one engine writes them: `overlap`, `native serial`, `serial csv` or `mapped`."""
    content = np.random.default_rng(5).uniform(0.5, 1.5, TOKENS)  # the same text in every cell
    read_bytes = np.round(20 * MIB * content * change.read)
    io = read_bytes / MIB * 2 * speed * rng.normal(1, 0.02, TOKENS).clip(0.9)
    majflt = rng.poisson(1 + change.faults, TOKENS).astype(float)
    compute = 60 * change.compute * speed * rng.normal(1, 0.01, TOKENS) + MS_PER_FAULT * majflt
    manage = np.full(TOKENS, 1.0) + change.manage_ms
    requests = np.full(TOKENS, 100.0)
    hits = np.round(100 - 20 * content * change.read)
    if style == "mapped":
        return Series(wall_ms=io + compute, compute_ms=io + compute, majflt=majflt)
    if style == "serial csv":
        return Series(
            wall_ms=io + compute, io_ms=io, compute_ms=compute, read_bytes=read_bytes, majflt=majflt
        )
    stall = io if style == "native serial" else 0.6 * io
    return Series(
        wall_ms=compute + stall + manage,
        io_ms=io,
        compute_ms=compute,
        stall_ms=stall,
        manage_ms=manage,
        read_bytes=read_bytes,
        requests=requests,
        hits=hits,
        majflt=majflt,
    )


@dataclasses.dataclass(frozen=True)
class Campaign:
    plan: Plan
    records: tuple[CellRecord, ...]
    series: dict[int, Series]
    pairs: tuple[PairRow, ...]

    def explained(self, candidate: str = "fast", **settings: object) -> Attribution:
        found = attribution_of(
            candidate,
            self.records,
            self.series,
            self.pairs,
            **settings,  # type: ignore[arg-type]
        )
        assert found is not None
        return found


def campaign(
    change: Change,
    style: str = "overlap",
    *,
    blocks: int = 9,
    abba: bool = False,
    drift: float = 0.0,
    probed: bool = False,
    seed: int = 1,
) -> Campaign:
    coins, rng = random.Random(seed), np.random.default_rng(seed)  # noqa: S311
    records, planned, pairs, series = [], [], [], {}
    for block in range(blocks):
        order = ["baseline", "fast"]
        coins.shuffle(order)
        if abba:
            order += order[::-1]
        first = len(records)
        for arm in order:
            index = len(records)
            speed = (1 + drift * index) * rng.normal(1, 0.005)
            series[index] = cell_series(change if arm == "fast" else Change(), rng, speed, style)
            probe = ProbeResult(compute_ms=100 * speed) if probed else None
            role = "baseline" if arm == "baseline" else "candidate"
            records.append(record(index, arm, Probes(probe, probe)))
            planned.append(PlannedCell(index, f"{arm}{index}", arm, role, 0.0, block))
        of = {
            arm: tuple(first + i for i, a in enumerate(order) if a == arm)
            for arm in ("baseline", "fast")
        }
        pairs.append(PairRow("fast", block, of["baseline"], of["fast"], "clean"))
    plan = Plan("abba" if abba else "pairs", {}, tuple(planned), "baseline", ("fast",))
    return Campaign(plan, tuple(records), series, tuple(pairs))


def record(index: int, arm: str, probes: Probes | None = None) -> CellRecord:
    return CellRecord(
        cell=f"{arm}{index}",
        arm=arm,
        role="baseline" if arm == "baseline" else "candidate",
        index=index,
        status="ok",
        exit_code=0,
        argv=(),
        target=TargetId("local", "here"),
        probe=probes or Probes(),
    )


def parts(found: Attribution) -> dict[str, AttributionRow]:
    return {r.part: r for r in found.rows}


def carrier(found: Attribution) -> str | None:
    return next((r.part for r in found.rows if r.carries), None)


# --- the answer is known -------------------------------------------------------------------------


def test_more_bytes_are_waiting_where_reads_run_beside_computing() -> None:
    found = campaign(Change(read=1.37)).explained()
    of = parts(found)
    assert carrier(found) == "waiting"
    assert of["waiting"].in_wall and not of["reading"].in_wall
    assert of["waiting"].change_ms == pytest.approx(0.6 * 0.37 * 40, rel=0.15)
    assert of["reading"].change_ms == pytest.approx(0.37 * 40, rel=0.15)
    assert found.carried_by.startswith("waiting for reads +")
    assert "+37 % bytes per token" in found.carried_by
    assert "hit rate" in found.carried_by
    assert found.carried_by.endswith("computing and managing the cache unchanged")


def test_more_bytes_are_reading_where_nothing_is_computed_meanwhile() -> None:
    found = campaign(Change(read=1.37), "serial csv").explained()
    of = parts(found)
    assert carrier(found) == "reading"
    assert of["reading"].in_wall
    assert of["waiting"].change_ms is None
    assert of["managing"].change_ms is None
    assert "computing unchanged" in found.carried_by


def test_the_native_engine_without_overlap_waits_for_all_of_its_reads() -> None:
    found = campaign(Change(read=1.37), "native serial").explained()
    of = parts(found)
    assert carrier(found) == "waiting"
    assert of["waiting"].change_ms == pytest.approx(of["reading"].change_ms)


@pytest.mark.parametrize("style", ["overlap", "native serial", "serial csv"])
@pytest.mark.parametrize("abba", [False, True])
def test_slower_computing(style: str, abba: bool) -> None:
    found = campaign(Change(compute=1.2), style, abba=abba).explained()
    row = parts(found)["computing"]
    assert carrier(found) == "computing"
    assert row.change_ms == pytest.approx(12, rel=0.1)
    assert row.ci_ms is not None and row.ci_ms[0] < row.change_ms < row.ci_ms[1]
    assert "bytes per token equal" in found.carried_by


def test_a_faster_candidate_has_its_effect_carried_too() -> None:
    found = campaign(Change(compute=0.8)).explained()
    assert carrier(found) == "computing"
    assert found.carried_by.startswith("computing -")


def test_managing() -> None:
    found = campaign(Change(manage_ms=7)).explained()
    assert carrier(found) == "managing"
    assert parts(found)["managing"].change_ms == pytest.approx(7, rel=0.1)


def test_what_makes_up_for_the_effect_is_told() -> None:
    found = campaign(Change(compute=1.3, read=0.7)).explained()
    assert carrier(found) == "computing"
    assert "waiting for reads -" in found.carried_by


def test_no_effect_is_carried_by_nothing() -> None:
    found = campaign(Change()).explained()
    assert carrier(found) is None
    assert found.carried_by.startswith("no part carries it")
    assert "computing" in found.carried_by


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["overlap", "mapped"])
def test_faults_inside_computing_carry_what_they_cost(style: str) -> None:
    made = campaign(Change(faults=40), style)
    row = parts(made.explained())["faulting"]
    # 40 more faults in tokens that differ by the noise of reads, too, where those are not apart
    assert row.change_ms == pytest.approx(40 * MS_PER_FAULT, rel=0.3)
    assert row.ci_ms is not None
    assert row.ci_ms[0] < 40 * MS_PER_FAULT < row.ci_ms[1]
    assert not row.in_wall
    assert row.carries


def test_faults_are_not_counted_twice() -> None:
    of = parts(campaign(Change(faults=40)).explained())
    in_wall = sum(r.change_ms or 0 for r in of.values() if r.in_wall)
    assert in_wall == pytest.approx(40 * MS_PER_FAULT, rel=0.1)
    assert of["computing"].in_wall and not of["computing"].carries


def test_slower_computing_is_not_blamed_on_faults_that_did_not_change() -> None:
    found = campaign(Change(compute=1.2)).explained()
    assert carrier(found) == "computing"
    row = parts(found)["faulting"]
    assert row.ci_ms is None or row.ci_ms[0] < 0 < row.ci_ms[1]


def test_faults_that_cost_nothing_have_no_time() -> None:
    made = campaign(Change(faults=20))
    rng = np.random.default_rng(3)
    for index, s in made.series.items():
        unrelated = rng.poisson(20 if made.records[index].arm == "fast" else 1, TOKENS)
        made.series[index] = dataclasses.replace(s, majflt=unrelated.astype(float))
    row = parts(made.explained())["faulting"]
    assert row.change_ms is None
    assert row.note is not None and "cannot be told" in row.note


def test_few_faults_have_no_time_and_none_cost_none() -> None:
    made = campaign(Change())
    for index, s in made.series.items():
        few = np.zeros(TOKENS)
        few[20] = index == 0
        made.series[index] = dataclasses.replace(s, majflt=few)
    row = parts(made.explained())["faulting"]
    assert row.change_ms is None and "too few" in (row.note or "")
    for index, s in made.series.items():
        made.series[index] = dataclasses.replace(s, majflt=np.zeros(TOKENS))
    assert parts(made.explained())["faulting"].change_ms == 0


def test_one_cell_does_not_decide_what_a_fault_costs() -> None:
    rng = np.random.default_rng(2)
    cells = []
    for i in range(8):
        faults = rng.poisson(200 if i == 3 else 1, TOKENS).astype(float)
        cells.append(Series(wall_ms=50 + faults, majflt=faults))
    assert fault_cost(cells, alpha=0.05).reason == "most of them were in few cells"


def test_faults_of_a_warming_cell_are_not_its_cost() -> None:
    """Both fall along the cell, for a reason of its own; nothing else ties them."""
    rng = np.random.default_rng(4)
    fall = np.linspace(1, 0, TOKENS)
    cells = [
        Series(
            wall_ms=50 + 20 * fall + rng.normal(0, 1, TOKENS),
            majflt=rng.poisson(5 + 20 * fall) * 1.0,
        )
        for _ in range(10)
    ]
    assert fault_cost(cells, alpha=0.05).ms is None


def test_quantiles_of_t() -> None:
    # a table of Student's t: 2.571, 2.228, 2.042
    assert t_quantile(0.975, 5) == pytest.approx(2.571, rel=2e-3)
    assert t_quantile(0.975, 10) == pytest.approx(2.228, rel=1e-3)
    assert t_quantile(0.975, 30) == pytest.approx(2.042, rel=1e-3)


# --- what adds up, and what must not matter ------------------------------------------------------


@pytest.mark.parametrize("style", ["overlap", "native serial", "serial csv"])
@pytest.mark.parametrize("probed", [False, True])
def test_parts_in_the_wall_add_up_to_its_change(style: str, probed: bool) -> None:
    made = campaign(Change(read=1.2, compute=0.9, manage_ms=1), style, drift=0.01, probed=probed)
    found = made.explained()
    whole = {
        i: Series(wall_ms=s.wall_ms, compute_ms=s.wall_ms, stall_ms=0 * s.wall_ms, io_ms=s.io_ms)
        for i, s in made.series.items()
    }
    wall = parts(dataclasses.replace(made, series=whole).explained())["computing"]
    assert sum(r.change_ms or 0 for r in found.rows if r.in_wall) == pytest.approx(
        wall.change_ms, abs=1e-6
    )
    assert sum(r.baseline_ms or 0 for r in found.rows if r.in_wall) == pytest.approx(
        wall.baseline_ms
    )


def test_a_unit_of_time_scales_all_and_changes_nothing_else() -> None:
    made = campaign(Change(compute=1.2, read=1.1))
    slower = {
        i: dataclasses.replace(
            s,
            **{
                name: 10 * getattr(s, name)
                for name in ("wall_ms", "io_ms", "compute_ms", "stall_ms", "manage_ms")
            },
        )
        for i, s in made.series.items()
    }
    for a, b in zip(
        made.explained().rows,
        dataclasses.replace(made, series=slower).explained().rows,
        strict=True,
    ):
        assert (a.part, a.in_wall, a.carries) == (b.part, b.in_wall, b.carries)
        if a.change_ms is not None and a.part != "faulting":
            assert b.change_ms == pytest.approx(10 * a.change_ms, rel=1e-6)
            assert b.ci_ms == pytest.approx([10 * x for x in a.ci_ms or ()], rel=1e-2)


def test_the_order_of_records_does_not_matter() -> None:
    made = campaign(Change(compute=1.2))
    shuffled = dataclasses.replace(made, records=made.records[::-1])
    assert shuffled.explained() == made.explained()


def test_exchanged_arms_exchange_the_sign() -> None:
    made = campaign(Change(compute=1.2))
    other = tuple(
        dataclasses.replace(r, arm="fast" if r.arm == "baseline" else "baseline")
        for r in made.records
    )
    there = parts(made.explained())["computing"].change_ms
    back = parts(dataclasses.replace(made, records=other).explained())["computing"].change_ms
    assert back == pytest.approx(-(there or 0))


def test_drift_is_not_an_effect() -> None:
    found = campaign(Change(), drift=0.02, blocks=12).explained()
    assert carrier(found) is None


def test_warm_up_does_not_count() -> None:
    made = campaign(Change())
    for index, s in made.series.items():
        if made.records[index].arm == "fast":
            slow = np.where(np.arange(TOKENS) < 16, 1000.0, 0.0)
            made.series[index] = dataclasses.replace(
                s,
                wall_ms=s.wall_ms + slow,
                compute_ms=s.compute_ms + slow,  # type: ignore[operator]
            )
    assert carrier(made.explained()) is None


def test_where_the_verdict_tells_no_effect_none_is_carried() -> None:
    made = campaign(Change(compute=1.2))
    found = made.explained(told=False)
    assert carrier(found) is None
    assert found.carried_by.startswith("no part carries it: no effect is told")
    assert parts(found)["computing"].change_ms == pytest.approx(12, rel=0.1)


def test_stalls_of_some_cells_are_held_back_and_still_add_up() -> None:
    """Tokens of ten seconds, in a few cells of either arm, hide 5 % of computing from the mean."""
    made = campaign(Change(compute=1.05), blocks=12)
    rng = np.random.default_rng(8)
    for index in (1, 6, 11, 13, 20):
        s = made.series[index]
        stall = np.where(np.arange(TOKENS) == 20 + index, rng.uniform(5e3, 1e4), 0.0)
        made.series[index] = dataclasses.replace(
            s,
            wall_ms=s.wall_ms + stall,
            compute_ms=s.compute_ms + stall,  # type: ignore[operator]
        )
    found = made.explained()
    of = parts(found)
    assert carrier(found) == "computing"
    assert of["computing"].change_ms == pytest.approx(3, rel=0.2)
    assert of["waiting"].baseline_ms == pytest.approx(23.8, rel=0.02)
    assert found.carried_by.endswith("stalls held back")
    in_wall = [r for r in found.rows if r.in_wall]
    assert sum(r.baseline_ms or 0 for r in in_wall) == pytest.approx(85.2, rel=0.02)


def test_an_effect_that_lives_in_stalls_is_not_held_back() -> None:
    made = campaign(Change(), blocks=12)
    for index, s in made.series.items():
        if made.records[index].arm == "fast":
            stall = np.where(np.arange(TOKENS) % 16 == 0, 300.0, 0.0)
            made.series[index] = dataclasses.replace(
                s,
                wall_ms=s.wall_ms + stall,
                stall_ms=s.stall_ms + stall,  # type: ignore[operator]
            )
    found = made.explained()
    assert carrier(found) == "waiting"
    assert parts(found)["waiting"].change_ms == pytest.approx(300 / 16, rel=0.1)


def test_replaced_pairs_are_left_out_and_the_verdicts_cells_decide() -> None:
    made = campaign(Change(), blocks=12)
    bad = made.pairs[0].candidate_cells[0]
    s = made.series[bad]
    made.series[bad] = dataclasses.replace(
        s,
        wall_ms=s.wall_ms * 9,
        compute_ms=s.compute_ms + 8 * s.wall_ms,  # type: ignore[operator]
    )
    replaced = (dataclasses.replace(made.pairs[0], status="replaced"), *made.pairs[1:])
    clean = dataclasses.replace(made, pairs=replaced).explained()
    assert abs(parts(clean)["computing"].change_ms or 0) < 2
    all_cells = tuple(r.index for r in made.records)
    fallback = dataclasses.replace(made, pairs=replaced).explained(used=all_cells)
    assert abs(parts(fallback)["computing"].change_ms or 0) > 20


# --- little is known -----------------------------------------------------------------------------

BOTH = ("baseline", "fast")


def without(made: Campaign, names: Sequence[str], arms: Sequence[str] = BOTH) -> Campaign:
    changed = {
        i: dataclasses.replace(s, **dict.fromkeys(names)) if made.records[i].arm in arms else s
        for i, s in made.series.items()
    }
    return dataclasses.replace(made, series=changed)


COLUMNS = [f.name for f in dataclasses.fields(Series) if f.name != "wall_ms"]


@pytest.mark.parametrize("style", ["overlap", "native serial", "serial csv", "mapped"])
@pytest.mark.parametrize("arms", [("baseline",), ("fast",), ("baseline", "fast")])
@pytest.mark.parametrize("name", [*COLUMNS, "all"])
def test_missing_columns_are_none_and_never_raise(
    style: str, arms: tuple[str, ...], name: str
) -> None:
    names = COLUMNS if name == "all" else [name]
    made = without(campaign(Change(compute=1.2), style, blocks=7), names, arms)
    found = made.explained()
    assert [r.part for r in found.rows] == [
        "reading",
        "waiting",
        "computing",
        "managing",
        "faulting",
    ]
    for row in found.rows:
        assert row.in_wall <= (row.change_ms is not None)
    assert len(attribution_table(found.rows).rows) == 5


def test_without_reads_it_is_not_split() -> None:
    found = without(campaign(Change(compute=1.2)), COLUMNS).explained()
    assert found.carried_by.startswith("not split: reads were not recorded apart from computing")
    assert carrier(found) is None


def test_a_mapped_model_against_a_streamed_one_is_not_split() -> None:
    made, mapped = campaign(Change()), campaign(Change(), "mapped")
    mixed = {
        i: mapped.series[i] if made.records[i].arm == "baseline" else s
        for i, s in made.series.items()
    }
    found = dataclasses.replace(made, series=mixed).explained()
    assert found.carried_by.startswith("not split")


def test_reading_of_a_serial_arm_is_waiting_against_an_overlapped_one() -> None:
    made, serial = campaign(Change()), campaign(Change(), "serial csv")
    mixed = {
        i: serial.series[i] if made.records[i].arm == "baseline" else s
        for i, s in made.series.items()
    }
    found = dataclasses.replace(made, series=mixed).explained()
    row = parts(found)["waiting"]
    assert row.in_wall and row.carries
    assert row.change_ms == pytest.approx(-0.4 * 40, rel=0.1)


def test_one_pair_has_no_interval_and_says_so() -> None:
    made = campaign(Change(compute=1.3), blocks=1)
    four_cell = dataclasses.replace(made, pairs=())
    found = four_cell.explained(used=(0, 1))
    row = parts(found)["computing"]
    assert row.change_ms == pytest.approx(18, rel=0.1)
    assert row.ci_ms is None and not row.carries
    assert "no interval" in found.carried_by
    assert "computing" in found.carried_by


def test_nothing_to_compare_is_none() -> None:
    made = campaign(Change(), blocks=3)
    assert attribution_of("fast", made.records, {}, made.pairs) is None
    assert attribution_of("other", made.records, made.series, made.pairs) is None
    assert attribution_of("fast", (), made.series, made.pairs) is None
    failed = [dataclasses.replace(r, status="failed") for r in made.records]
    assert attribution_of("fast", failed, made.series, made.pairs) is None
    short = {i: Series(wall_ms=s.wall_ms[:10]) for i, s in made.series.items()}
    assert attribution_of("fast", made.records, short, made.pairs) is None


def test_a_verdict_gets_rows_and_words_of_every_candidate() -> None:
    made = campaign(Change(compute=1.2))
    used = tuple(r.index for r in made.records)
    verdict = CampaignVerdict(
        "c",
        Drift("unknown", None),
        (
            CandidateVerdict("fast", "baseline", "loss", cells_used=used),
            CandidateVerdict("other", "baseline", "unreadable"),
        ),
        pairs=made.pairs,
    )
    found = with_attribution(verdict, made.records, made.series)
    assert found.attribution == made.explained().rows
    assert {row.candidate for row in found.attribution} == {"fast"}
    assert found.verdicts[0].effect_carried_by == made.explained().carried_by
    assert found.verdicts[1].effect_carried_by is None


# --- one cell ------------------------------------------------------------------------------------

Column = Callable[[Array], Array]


@pytest.mark.parametrize(
    ("columns", "split"),
    [
        ({"io_ms": 40, "compute_ms": 60}, "serial"),
        ({"io_ms": 40, "compute_ms": 60, "stall_ms": 0}, "serial"),
        ({"io_ms": 90, "compute_ms": 60, "stall_ms": 40}, "overlapped"),
        ({"io_ms": 90, "compute_ms": 60}, "overlapped"),
        ({"stall_ms": 40}, "overlapped"),
        ({"io_ms": 0, "stall_ms": 0, "compute_ms": 100, "requests": 8}, "overlapped"),
        ({"io_ms": 0, "stall_ms": 0, "compute_ms": 100, "read_bytes": 0}, "unsplit"),
        ({"io_ms": 10, "compute_ms": 20}, "unsplit"),
        ({"compute_ms": 100}, "unsplit"),
        ({}, "unsplit"),
    ],
)
def test_how_a_cell_is_split_is_told_from_what_adds_up(
    columns: Mapping[str, float], split: str
) -> None:
    series = Series(
        wall_ms=np.full(24, 100.0), **{k: np.full(24, float(v)) for k, v in columns.items()}
    )
    found = cell_parts(record(0, "a"), series)
    assert found is not None
    assert found.split == split
    if split == "overlapped" and columns.get("requests") is None:
        assert found.waiting_ms == pytest.approx(40)
        assert found.computing_ms == pytest.approx(60)


def test_bytes_and_hits_come_from_the_cell_where_tokens_do_not_say() -> None:
    whole = dataclasses.replace(
        record(0, "a"), metrics=Metrics(bytes_per_token=5.0, hit_rate=0.5, dropped_share=0.1)
    )
    found = cell_parts(whole, Series(wall_ms=np.full(24, 100.0)))
    assert found is not None
    assert (found.read_bytes, found.hit_rate, found.dropped_share) == (5.0, 0.5, 0.1)
