"""Every experiment that is shipped composes, checks and plans, without an engine."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cell_parts import Numbers

from harness import configure, schema
from harness.configure import check, compose
from harness.engine_flags import EVICTION_POLICIES
from harness.engines.native_argv import engine_argv
from harness.models import ModelFile, resolve_model
from harness.models.text import given_text
from harness.plan import make_plan
from harness.planned import Plan

CONF = configure.conf_dir()
REPO = Path(__file__).resolve().parents[2]
NIGHTS = {"nightly"}  # sweeps of others
NAMES = [n for n in configure.options(CONF, "experiment") if n not in NIGHTS]
PAIRS = {"sequential_pairs", "aa"}
SURVEYS = {"predictor_accuracy"}
LADDERS = {"memory_levels", "eviction", "identity", "topk_ablation"}
# what the names of greedy cells begin with, whose own words are what is compared
GREEDY = {"memory_levels": "", "identity": "", "topk_ablation": "greedy_"}


@pytest.fixture(scope="module")
def reference() -> ModelFile:
    return resolve_model({"kind": "reference"})


@functools.cache  # composing is most of the time of a test here; nothing changes what it gives
def configured(name: str) -> schema.Config:
    return check(compose([f"+experiment={name}"]))


def planned(name: str, reference: ModelFile) -> Plan:
    texts = {"heldout": given_text("heldout", "cell.text")}
    return make_plan(configured(name), reference.info, 2, texts)


def test_the_experiments_that_the_readme_may_name_are_there() -> None:
    assert set(NAMES) >= {
        *("matched_pair", "predictor_accuracy", "io_lanes", "drop_sweep", "prefetch"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_is_valid_and_described(name: str) -> None:
    assert configured(name).name == name
    text = dict(configure.described(CONF, "experiment"))[name]
    assert text.endswith("?"), "an experiment is a question"


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_only_overrides(name: str) -> None:
    """Its keys exist without it, so that what may be configured stands in one place."""
    known = {k.split(".")[0] for k in schema.known_keys()}
    text = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())
    assert set(text) - {"defaults"} <= known
    assert all(key.startswith("override ") for entry in text.get("defaults", []) for key in entry)


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_plans_with_the_sentinel_that_its_design_needs(
    name: str, reference: ModelFile
) -> None:
    plan = planned(name, reference)
    if name in SURVEYS | LADDERS:
        assert plan.design == ("survey" if name in SURVEYS else "levels")
        assert {c.role for c in plan.cells} == {"candidate"}
        return
    if name in PAIRS:
        assert plan.design == "pairs" and plan.coins is not None
        return
    baselines = {c.index for c in plan.cells if c.arm == plan.baseline}
    assert plan.cells[-1].name == "sentinel"
    for cell in plan.cells:
        neighbours = {cell.index - 1, cell.index + 1} & baselines
        assert cell.index in baselines or neighbours, f"{cell.name} has no baseline beside it"


@pytest.mark.parametrize("name", NAMES)
def test_the_cells_of_an_experiment_decode_one_real_text(name: str, reference: ModelFile) -> None:
    """Left to itself each cell that drops would write its own, and small models fall into loops."""
    greedy = GREEDY.get(name, "sentinel")
    arms = planned(name, reference).arms.values()
    texts = {arm.text or arm.perplexity for arm in arms if not arm.name.startswith(greedy)}
    assert texts <= {given_text("heldout", "cell.text")}
    assert all(arm.text is None for arm in arms if arm.name.startswith(greedy))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_prints_its_plan_and_makes_nothing(name: str, tmp_path: Path) -> None:
    words = [f"+experiment={name}", "plan_only=true", "model=reference", "engine.binary=/no/engine"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words, f"runs_dir={tmp_path / 'runs'}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "plan only" in done.stdout
    table = done.stdout.partition("model ")[0]
    assert max(map(len, table.splitlines())) <= 100
    assert not list(tmp_path.iterdir())


def test_a_plan_whose_model_is_not_made_yet_says_so_and_makes_nothing(tmp_path: Path) -> None:
    words = ["+experiment=io_lanes", "plan_only=true", f"engine.cache_dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words, f"runs_dir={tmp_path / 'runs'}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for phrase in (
        "0 lanes_1",
        "cache MiB unknown",
        "not made yet, a run makes it first; the cache in MiB is not known until then",
        "lanes_8 0.25 of the experts",
        "plan only: nothing was run",
    ):
        assert phrase in done.stdout
    assert not list(tmp_path.rglob("*.gguf"))
    assert not (tmp_path / "runs").exists()


# --- what each of them changes -------------------------------------------------------------------


def words_of(plan: Plan) -> dict[str, set[str]]:
    """Flags with their values by arm, less what all arms have."""
    found = {}
    for name, arm in plan.arms.items():
        argv = engine_argv(Path("e"), Path("m"), Path("p"), arm, Path("o"))
        text = " ".join(argv).replace(" --", "\n--").replace(" -", "\n-").splitlines()
        found[name] = set(text)
    common = set.intersection(*found.values()) if len(found) > 1 else set()
    return {name: flags - common for name, flags in found.items()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "matched_pair",
            {
                "baseline": set(),
                "retention": {"--predict-prefetch", "--predict-spec-max 0"},
                "spec2": {"--predict-prefetch", "--predict-spec-max 2"},
            },
        ),
        ("io_lanes", {f"lanes_{n}": {f"--io-threads {n}"} for n in (1, 2, 4, 8)}),
        (
            "drop_sweep",
            {
                "keep_all": set(),
                "drop_050": {"--drop-cold-experts 0.5"},
                "drop_075": {"--drop-cold-experts 0.75"},
                "drop_100": {"--drop-cold-experts 1.0"},
            },
        ),
        (
            "prefetch",
            {
                "on_demand": set(),
                "previous": {"--prefetch 1"},
                "stale_1": {
                    *("--predict-prefetch", "--predict-horizon 1", "--predict-spec-max 2"),
                },
                "stale_2": {
                    *("--predict-prefetch", "--predict-horizon 2", "--predict-spec-max 2"),
                },
                "retention": {"--predict-prefetch", "--predict-spec-max 0"},
            },
        ),
    ],
)
def test_the_cells_of_an_experiment_differ_in_its_question_only(
    name: str, expected: dict[str, set[str]], reference: ModelFile
) -> None:
    assert words_of(planned(name, reference)) == expected


def test_the_baseline_of_the_main_job_is_b(reference: ModelFile) -> None:
    argv = engine_argv(
        *(Path("e"), Path("m"), Path("p")),
        planned("matched_pair", reference).arms["baseline"],
        Path("o"),
    )
    for words in ("--drop-cold-experts 0.75", "--dense-weights anon", "--moe-stream"):
        assert words in " ".join(argv)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in {"cache_sizes", *LADDERS}])
def test_no_cache_is_near_the_lru_cliff(name: str, reference: ModelFile) -> None:
    """At least 1.5 times one token's cycle, and still far from holding everything."""
    top_k = reference.info.n_expert_used
    cycle = (
        reference.info.n_moe_layer * top_k / (reference.info.n_moe_layer * reference.info.n_expert)
    )
    for cell in configured(name).cells.values():
        assert cell.engine.cache_fraction is not None
        assert 1.5 * cycle <= cell.engine.cache_fraction <= 0.5


def test_the_ladder_has_the_published_models_geometry_and_compares_greedy_output() -> None:
    config = configured("memory_levels")
    assert config.model["geometry"] == "epq"
    (cell,) = config.cells.values()
    assert (cell.text, cell.engine.prefetch, cell.engine.dense_weights) == (None, None, "anon")
    assert (cell.engine.evict, cell.engine.stats) == ("lru", True)
    plan = make_plan(config, Numbers(file_bytes=2**30), 2, {})
    assert {arm.cgroup_mode for arm in plan.arms.values()} == {"wanted"}


def test_a_ladder_whose_model_is_not_made_yet_says_that_its_levels_are_not_known(
    tmp_path: Path,
) -> None:
    words = ["+experiment=memory_levels", "plan_only=true", f"engine.cache_dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the levels, shares of its file, are not known in MiB until then" in done.stdout
    assert done.stdout.count("unknown") >= 6
    assert not list(tmp_path.rglob("*.gguf"))


def test_eviction_differs_in_the_policy_at_each_level(reference: ModelFile) -> None:
    plan = planned("eviction", reference)
    for level in {arm.level.limit_mb for arm in plan.arms.values() if arm.level is not None}:
        arms = [a for a in plan.arms.values() if a.level is not None and a.level.limit_mb == level]
        assert len({a.engine.evict for a in arms}) == len(arms) == len(EVICTION_POLICIES)
        assert len({replace(a.engine, evict=None) for a in arms}) == 1


def test_every_policy_is_shown_to_be_identical_at_every_level(reference: ModelFile) -> None:
    plan = planned("identity", reference)
    (plain,) = [arm for arm in plan.arms.values() if not arm.engine.moe_stream]
    assert plain.data_limit_bytes is None
    assert plan.cells[0].arm == plain.name
    paging = [arm for arm in plan.arms.values() if arm is not plain]
    assert {arm.engine.evict for arm in paging} == set(EVICTION_POLICIES)
    limits = {arm.data_limit_bytes for arm in paging}
    assert len(paging) == len(EVICTION_POLICIES) * len(limits)
    for arm in paging:
        assert replace(arm.engine, evict=None, ram_budget_mb=None) == replace(
            plain.engine,
            moe_stream=True,
            **{k: getattr(arm.engine, k) for k in ("io_threads", "direct_io", "dense_weights")},
        )
        assert (arm.prompt, arm.n_predict) == (plain.prompt, plain.n_predict)


def test_each_top_k_is_decoded_at_two_caps_and_scored_and_left_to_itself_once(
    reference: ModelFile,
) -> None:
    arms = list(planned("topk_ablation", reference).arms.values())
    for top_k in (None, 2, 1):
        own = [arm for arm in arms if arm.engine.expert_used == top_k]
        assert sum(arm.level is not None and arm.text is not None for arm in own) == 2
        assert sum(arm.perplexity is not None for arm in own) == 1
        assert sum(arm.text is None and arm.perplexity is None for arm in own) == 1
    assert all((arm.level is None) == (arm.text is None) for arm in arms)


def test_the_probed_run_scores_predictors(reference: ModelFile) -> None:
    (arm,) = planned("predictor_accuracy", reference).arms.values()
    assert "--predict-log" in engine_argv(Path("e"), Path("m"), Path("p"), arm, Path("o"))


def test_lanes_are_compared_where_reads_are_what_takes_time() -> None:
    config = configured("io_lanes")
    assert config.model["kind"] == "inflated"
    assert all(cell.engine.overlap for cell in config.cells.values())
    assert check(compose(["+experiment=io_lanes", "model=reference"])).model["kind"] == "reference"
