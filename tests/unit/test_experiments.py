"""Every experiment that is shipped composes, checks and plans, without an engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness import configure, schema
from harness.configure import check, compose
from harness.engines.native_argv import engine_argv
from harness.models import ModelFile, resolve_model
from harness.models.text import given_text
from harness.plan import make_plan
from harness.records import Plan

CONF = configure.conf_dir()
REPO = Path(__file__).resolve().parents[2]
NAMES = configure.options(CONF, "experiment")
SURVEYS = {"predictor_accuracy"}
LADDERS = {"memory_levels"}


@pytest.fixture(scope="module")
def reference() -> ModelFile:
    return resolve_model({"kind": "reference"})


def planned(name: str, reference: ModelFile, *overrides: str) -> Plan:
    texts = {"heldout": given_text("heldout", "cell.text")}
    return make_plan(check(compose([f"+experiment={name}", *overrides])), reference.info, 2, texts)


def test_the_experiments_that_the_readme_may_name_are_there() -> None:
    assert set(NAMES) >= {
        *("matched_pair", "predictor_accuracy", "io_lanes", "drop_sweep", "prefetch"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_is_valid_and_described(name: str) -> None:
    assert check(compose([f"+experiment={name}"])).name == name
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
    baselines = {c.index for c in plan.cells if c.arm == plan.baseline}
    assert plan.cells[-1].name == "sentinel"
    for cell in plan.cells:
        neighbours = {cell.index - 1, cell.index + 1} & baselines
        assert cell.index in baselines or neighbours, f"{cell.name} has no baseline beside it"


@pytest.mark.parametrize("name", [n for n in NAMES if n not in LADDERS])
def test_the_cells_of_an_experiment_decode_one_real_text(name: str, reference: ModelFile) -> None:
    """Left to itself each cell that drops would write its own, and small models fall into loops."""
    arms = planned(name, reference).arms.values()
    assert {arm.text for arm in arms} == {given_text("heldout", "cell.text")}


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
    for cell in check(compose([f"+experiment={name}"])).cells.values():
        assert cell.engine.cache_fraction is not None
        assert 1.5 * cycle <= cell.engine.cache_fraction <= 0.5


def test_the_ladder_has_the_published_models_geometry_and_compares_greedy_output() -> None:
    config = check(compose(["+experiment=memory_levels"]))
    assert config.model["geometry"] == "epq"
    (cell,) = config.cells.values()
    assert (cell.text, cell.engine.prefetch, cell.engine.dense_weights) == (None, None, "anon")
    assert config.memory.cgroup == "wanted"


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


def test_the_probed_run_scores_predictors(reference: ModelFile) -> None:
    (arm,) = planned("predictor_accuracy", reference).arms.values()
    assert "--predict-log" in engine_argv(Path("e"), Path("m"), Path("p"), arm, Path("o"))


def test_lanes_are_compared_where_reads_are_what_takes_time() -> None:
    config = check(compose(["+experiment=io_lanes"]))
    assert config.model["kind"] == "inflated"
    assert all(cell.engine.overlap for cell in config.cells.values())
    assert check(compose(["+experiment=io_lanes", "model=reference"])).model["kind"] == "reference"
