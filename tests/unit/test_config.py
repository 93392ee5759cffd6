"""Overrides to a checked configuration: what composes, and one clear line for what does not."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import configure, schema, validation
from harness.configure import check, compose, overridden, resolved, to_yaml
from harness.errors import UsageError
from harness.rundir import difference, resume_command
from harness.tracking_config import TrackingConfig
from harness.typed import nearest

SIZES = "+experiment=cache_sizes"


def composed(*overrides: str) -> schema.Config:
    return check(compose([SIZES, *overrides]))


def fault(*overrides: str) -> str:
    """The one line with which the overrides are refused."""
    with pytest.raises(UsageError) as refused:
        check(compose(overrides))
    line = str(refused.value)
    assert "\n" not in line
    assert "HYDRA_FULL_ERROR" not in line
    return line


# --- what composes -------------------------------------------------------------------------------


def test_the_main_job_is_the_four_cell_session_that_its_users_know() -> None:
    config = check(compose(["+experiment=matched_pair"]))
    assert config.name == "matched_pair"
    assert list(config.cells) == ["baseline", "retention", "spec2"]
    assert config.design == schema.DesignConfig("four_cell", "baseline", None)
    assert config.schedule.spacing_s == 30
    assert config.memory.limit_mb is None
    assert config.tracking == TrackingConfig(enabled=True, uri=None)
    assert all(c.engine.no_eog and c.n_predict == 1024 for c in config.cells.values())
    b, retention, spec2 = (cell.engine for cell in config.cells.values())
    assert (b.drop_cold_experts, b.dense_weights, b.predict_prefetch) == (0.75, "anon", False)
    both = {"predict_prefetch": True, "predict_horizon": None}
    assert retention == dataclasses.replace(b, predict_spec_max=0, **both)
    assert spec2 == dataclasses.replace(b, predict_spec_max=2, **both)


@pytest.mark.parametrize("name", configure.options(configure.conf_dir(), "cell"))
def test_every_shipped_cell_can_be_named(name: str) -> None:
    # with a cache in `cell`, over which the cells that need one are laid
    config = check(compose(["+experiment=matched_pair", f"cells.candidate={name}"]))
    assert config.cells["candidate"]


def test_every_configuration_file_begins_by_saying_what_it_is() -> None:
    conf = configure.conf_dir()
    for path in [conf / "config.yaml", *conf.glob("*/*.yaml")]:
        assert path.read_text(encoding="utf-8").lstrip().startswith("#"), f"{path}: no comment"


def test_a_shared_setting_reaches_every_cell_and_a_cells_own_wins() -> None:
    config = composed("cell.engine.io_threads=4", "cells.cache_off.engine.io_threads=8")
    assert [c.engine.io_threads for c in config.cells.values()] == [4, 4, 8]


def test_a_cell_is_added_by_name_and_changed_after_that() -> None:
    config = composed("cells.candidate=baseline", "cells.candidate.engine.cache_fraction=0.125")
    assert config.cells["candidate"].engine.cache_fraction == 0.125
    assert schema.candidates_of(config) == ("cache_half", "cache_off", "candidate")


def test_a_cell_is_replaced_and_removed() -> None:
    config = composed("~cells.cache_off", "cells.cache_half=plain")
    assert list(config.cells) == ["baseline", "cache_half"]
    assert not config.cells["cache_half"].engine.moe_stream


def test_all_cells_are_given_at_once() -> None:
    config = composed("cells={a:baseline,b:{engine:{cache_mb:3}}}", "design.baseline=a")
    assert config.cells["b"].engine.cache_mb == 3
    assert schema.candidates_of(config) == ("b",)


def test_a_cell_file_can_be_laid_over_all_cells() -> None:
    config = composed("cell=plain", "cells={baseline:{},more:{n_predict:64}}")
    assert not any(c.engine.moe_stream for c in config.cells.values())


def test_the_experiment_may_be_given_without_a_plus() -> None:
    assert check(compose(["experiment=matched_pair"])).name == "matched_pair"


def test_groups_are_chosen() -> None:
    config = composed("memory.limit_mb=64", "tracking=off", "model=inflated")
    assert config.memory.limit_mb == 64
    assert not config.tracking.enabled
    assert config.model["kind"] == "inflated"


def test_a_local_file_overrides_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    conf = tmp_path / "conf"
    shutil.copytree(configure.conf_dir(), conf)
    (conf / "local").mkdir(exist_ok=True)
    text = "# @package _global_\nschedule:\n  spacing_s: 7\n"
    (conf / "local" / "default.yaml").write_text(text)
    monkeypatch.setattr(configure, "conf_dir", lambda: conf)
    assert composed().schedule.spacing_s == 7
    assert composed("schedule.spacing_s=3").schedule.spacing_s == 3


def test_composing_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    composed()
    assert Path.cwd() == tmp_path
    assert not list(tmp_path.iterdir())


def test_what_is_stored_is_read_back_as_the_same() -> None:
    data = compose([SIZES, "cells.cache_half.n_predict=64"])
    stored = yaml.safe_load(to_yaml(resolved(data)))
    assert validation.check_config(stored) == check(data)
    assert difference(stored, resolved(data)) == []


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("schedule.spacing=3", ["schedule.spacing:", "unknown", "'schedule.spacing_s'"]),
        ("shedule.spacing_s=3", ["shedule.spacing_s:", "'schedule.spacing_s'"]),
        ("spacing_s=3", ["spacing_s:", "'schedule.spacing_s'"]),
        ("schedule.gat=3", ["schedule.gat:", "unknown"]),
        ("++nonsense=1", ["nonsense:", "unknown"]),
        ("model=referenc", ["no such model", "'reference'"]),
        ("memory=foo", ["no such memory", "half, uncapped"]),
        ("model=path model.pth=/x", ["model.pth:", "'model.path'"]),
        ("model.path=/x", ["model.path:", "no such key", "model=NAME"]),
        ("+model.path=/x", ["model.path:", "no such key"]),
        ("cells.candidate=baselin", ["cells.candidate:", "baselin.yaml", "'baseline'"]),
        ("cells.cach_half.engine.cache_mb=1", ["'cach_half'", "'cache_half'"]),
        ("cells.cache_half.engine.cache_m=1", ["cache_m:", "unknown", "'cache_mb'"]),
        ("cells.cache_half.engine.cache_mb=-1", ["engine.cache_mb: -1", "0 or more"]),
        ("cells.cache_half.engine.cache_mb=1", ["cache_mb=1", "cache_fraction=0.5", "exclude"]),
        ("cells.cache_half.engine.cache_fraction=null", ["moe_stream", "cache_mb"]),
        ("cells.cache_half.engine.cache_fraction=1.5", ["cache_fraction: 1.5", "at most 1"]),
        ("cells.cache_half.engine.repack=true", ["repack", "moe_stream"]),
        ("cells.cache_half.engine.moe_stream=false", ["cache_fraction", "without moe_stream"]),
        ("cells.cache_half=3", ["cells.cache_half:", "3"]),
        ("cells={}", ["nothing to run", "matched_pair"]),
        ("cells=3", ["cells:", "NAME"]),
        ("cells.sentinel=baseline", ["sentinel", "another name"]),
        ("~cells.other", ["~cells.other", "nothing to remove"]),
        ("~cells.baseline", ["design.baseline", "'baseline'"]),
        ("~schedule.spacing_s", ["schedule.spacing_s", "needs a value"]),
        ("cell.n_predict=many", ["cell.n_predict:", "'many'", "whole number"]),
        ("cell.n_predict=1.5", ["cell.n_predict:", "1.5", "whole number"]),
        ("cell.n_predict=true", ["cell.n_predict:", "true", "whole number"]),
        ("cell.n_predict=0", ["cell.n_predict: 0", "1 or more"]),
        ("cell.n_predict=2048", ["n_predict", "n_ctx=2048"]),
        (f"cell.n_predict={'9' * 400}", ["cell.n_predict", "400 digits", "out of range"]),
        ("memory.limit_mb=99999999999999", ["memory.limit_mb", "out of range"]),
        ("cell.time_limit_s=1e300", ["cell.time_limit_s", "out of range"]),
        ("cell=null", ["configuration", "string"]),
        ("cells.baseline=5 cells.baseline.engine.x=1", ["cells.baseline: found 5"]),
        ("tracking.uri=", ["tracking.uri: is no address", "null"]),
        ("build.toolchain=gcc", ["build.toolchain: found 'gcc'", "host, zig, ndk"]),
        ("build.ndk_dir=/ndk", ["build.ndk_dir: acts only with build.toolchain=ndk"]),
        (
            "build.toolchain=zig engine.binary=/e engine.launcher=/l",
            ["build.toolchain: zig cannot act", "built already"],
        ),
        ("runs_dir=a?b", ["runs_dir: a?b"]),
        ('cell.prompt="a\udcff"', ["cells.baseline.prompt", "UTF-8"]),
        ("cell.seed=1", ["seed", "greedily"]),
        ("cell.prompt=''", ["prompt", "empty"]),
        ("cell.text=''", ["cells.baseline.text", "empty", "heldout"]),
        ("cells.cache_half.text=/a.txt", ["cells.cache_half.text: '/a.txt'", "'heldout'", "same"]),
        ("cells.cache_half.text=null", ["cells.cache_half.text: null", "'heldout'", "cell.text="]),
        ("cells.baseline.text=null", ["cells.cache_half.text: 'heldout'", "baseline has null"]),
        ("cell.text=7", ["cell.text", "7", "text"]),
        ("cell.engine.dense_weights=ram", ["dense_weights", "'ram'", "mmap, warm, anon"]),
        ("cell.engine.io_threads=17", ["io_threads: 17", "at most 16"]),
        ("cell.engine.no_eog=maybe", ["no_eog", "'maybe'", "true or false"]),
        ("cell=3", ["cell=3", "no such cell"]),
        ("cell.time_limit_s=0", ["time_limit_s: 0", "more than 0"]),
        ("schedule.spacing_s=-1", ["schedule.spacing_s: -1", "0 or more"]),
        ("schedule.spacing_s=nan", ["schedule.spacing_s: nan"]),
        ("schedule.spacing_s=inf", ["schedule.spacing_s: inf"]),
        ("memory=cap", ["memory=cap: is no more", "memory.limit_mb=N", "memory=half"]),
        ("memory=levels", ["memory=levels: is no more", "design=levels"]),
        ("memory.levels=[0.5]", ["memory.levels: is design.levels now"]),
        ("memory.levels_mb=[64]", ["memory.levels_mb: is design.levels_mb now"]),
        ("memory={levels:[0.5]}", ["memory.levels: is design.levels now"]),
        ("memory.limit_share=0", ["memory.limit_share: 0 is out of range"]),
        ("memory.limit_share=150", ["memory.limit_share: 150 is out of range", "at most 100"]),
        ("memory.limit_mb=1.5", ["memory.limit_mb:", "1.5", "whole number"]),
        ("design.baseline=base", ["design.baseline", "'base'", "'baseline'"]),
        ("design.candidates=[cache_half]", ["cells.cache_off", "no place in the design"]),
        ("design.candidates=[baseline]", ["design.candidates", "is the baseline already"]),
        ("design.candidates=[]", ["design.candidates", "none"]),
        ("design.candidates=cache_half", ["design.candidates", "[a,b]"]),
        ("verdict.stable_pct=0", ["verdict.stable_pct: 0", "more than 0"]),
        ("name=a/b", ["name:", "'a/b'"]),
        ("runs_dir=", ["runs_dir", "empty"]),
        ("hydra.run.dir=/x", ["hydra.run.dir", "leave it out"]),
        ("cell.engine.io_threads=1,2", ["io_threads=1,2", "needs -m", "[a,b]"]),
        ("a=[", ["'a=['", "not readable"]),
    ],
)
def test_a_mistake_is_one_line_with_key_fault_and_remedy(override: str, words: list[str]) -> None:
    line = fault(SIZES, *override.split(" "))
    for word in words:
        assert word in line, line


def test_the_cells_of_a_survey_may_decode_different_texts() -> None:
    cells = composed("design=survey", "cells.cache_half.text=/a.txt").cells
    assert {cell.text for cell in cells.values()} == {"heldout", "/a.txt"}


def test_an_unknown_experiment_names_the_nearest() -> None:
    assert "'matched_pair'" in fault("+experiment=matched_par")


def test_without_an_experiment_the_line_says_which_exist() -> None:
    line = fault("schedule.spacing_s=2")
    assert "+experiment=NAME" in line
    assert "matched_pair" in line


def test_a_config_file_that_is_no_yaml_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    conf = tmp_path / "conf"
    shutil.copytree(configure.conf_dir(), conf)
    (conf / "cell" / "broken.yaml").write_text("# x\nengine: {a: 1\n")
    monkeypatch.setattr(configure, "conf_dir", lambda: conf)
    assert "broken.yaml" in fault(SIZES, "cells.candidate=broken")


# --- resume --------------------------------------------------------------------------------------


def stored() -> dict[str, Any]:
    return resolved(compose([SIZES]))


def test_overrides_that_repeat_what_is_stored_change_nothing() -> None:
    data = stored()
    assert difference(data, overridden(data, ["schedule.spacing_s=30", "resume=x"])) == []


def test_a_changed_override_is_a_difference_with_both_values() -> None:
    data = stored()
    assert difference(data, overridden(data, ["schedule.spacing_s=5"])) == [
        "schedule.spacing_s: 30 -> 5"
    ]
    assert data == stored()


def test_a_group_cannot_be_compared_with_what_is_stored() -> None:
    with pytest.raises(UsageError, match="memory=half"):
        overridden(stored(), ["memory=half"])


# --- the schema by itself ------------------------------------------------------------------------


def test_every_field_of_the_schema_is_in_the_defaults() -> None:
    data = compose([])
    for f in dataclasses.fields(schema.Config):
        assert f.name in data
    assert set(data) == {f.name for f in dataclasses.fields(schema.Config)}


def test_nearest_falls_back_to_the_list() -> None:
    assert nearest("xyz", ["b", "a"]) == "; known: a, b"
    assert nearest("aple", ["apple", "pear"]) == "; did you mean 'apple'?"


@pytest.mark.parametrize(
    "runs_dir",
    [
        "/tmp/runs",
        "a b",
        "it's",
        'a"b',
        "a\\",
        'a\\"b\\\\',
        "$(x)`y`",
        "é\nz",
        "{a: [1,2]}",
    ],
)
def test_the_command_that_resumes_finds_the_same_runs_directory(runs_dir: str) -> None:
    shell = resume_command(Path(runs_dir) / "20261130T000000Z-x-1234")
    words = shlex.split(shell)
    assert words[:3] == ["python", "-m", "harness"]
    composed = compose(words[3:])
    assert (composed["resume"], composed["runs_dir"]) == ("20261130T000000Z-x-1234", runs_dir)


@pytest.mark.parametrize(
    ("uri", "taken"),
    [
        *((u, True) for u in ("http://h:5000", "https://u:p@h/x", "http://[::1]:5000")),
        *((u, True) for u in ("sqlite:////a/b.db", "postgresql+psycopg2://u:p@h/db")),
        *((u, False) for u in ("''", "ftp://x", "localhost:5000", "/tmp/plain", "file:///x")),
        *((u, False) for u in ("http://[::1", "http://", "http://h:x", "sqlite://")),
    ],
)
def test_an_address_that_mlflow_does_not_take_is_refused_before_anything_runs(
    uri: str, taken: bool
) -> None:
    lines = ["+experiment=matched_pair", f"tracking.uri={uri if uri == chr(39) * 2 else repr(uri)}"]
    if taken:
        assert check(compose(lines)).tracking.uri == uri
    else:
        with pytest.raises(UsageError, match=r"^tracking\.uri: is no address") as caught:
            check(compose(lines))
        assert "\n" not in str(caught.value)
