"""Which settings of the engine can act together: every pair of them, against the engine's rules."""

from __future__ import annotations

import pytest
from flag_parts import CHOICES, PAIRS, settings_of

from harness.configure import check, compose
from harness.engine_flags import EngineFlags, asked, conflict
from harness.errors import UsageError
from harness.jsonable import from_json
from harness.planned import EngineSettings

# from docs/engine.md, by hand
NEEDS = {
    "floor": "auto",
    "ceiling": "auto",
    "reserve": "budget",
    "load all": "no cache",
    "most": "predict",
    "horizon": "predict",
    "no renorm": "drop",
    "in prefill": "drop",
}
NEVER = {"repack"}  # in streaming mode
EXCLUDE = [
    *({"no cache", name} for name in ("force", "prefetch", "predict", "drop", "evict")),
    *({"budget", name} for name in ("force", "load all", "forced")),
    {"auto", "force"},
    {"auto", "forced"},
    {"load all", "overlap"},
    {"prefetch", "predict"},
    {"forced", "predict"},
    {"forced", "log"},
]


def may_act(chosen: set[str]) -> bool:
    if chosen & NEVER or any(both <= chosen for both in EXCLUDE):
        return False
    return all(NEEDS[name] in chosen for name in chosen & NEEDS.keys())


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_a_pair_of_settings_is_refused_exactly_when_it_cannot_act(pair: tuple[str, str]) -> None:
    found = conflict(settings_of(*pair))
    assert (found is None) is may_act(set(pair)), found
    if found is not None:
        named = {key for name in pair for key in CHOICES[name]}
        assert found.name in named
        assert "\n" not in found.words


@pytest.mark.parametrize("name", [n for n in CHOICES if n not in ("top-k", "repack")])
def test_without_streaming_nothing_of_it_can_act(name: str) -> None:
    plain = settings_of() | {"moe_stream": False, "cache_mb": None} | CHOICES[name]
    found = conflict(plain)
    assert found is not None
    assert "without moe_stream" in found.words


@pytest.mark.parametrize("size", [{"cache_mb": 0}, {"cache_mb": "auto"}, {"cache_fraction": 0.5}])
def test_a_budget_leaves_no_cache_size_to_choose(size: dict[str, object]) -> None:
    found = conflict(settings_of("budget") | size)
    assert found is not None
    assert (found.name, "exclude each other" in found.words) == ("ram_budget_mb", True)


def test_a_budget_is_a_cache() -> None:
    for name in ("prefetch", "predict", "drop", "evict"):
        assert conflict(settings_of("budget", name)) is None


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    override = "cells.cache_half.engine.evict="
    assert check(compose(["+experiment=cache_sizes", override + "ls_pos"]))
    with pytest.raises(UsageError, match=r"evict: found 'mru'; needs one of lru, ls, ls_pos, lfu"):
        check(compose(["+experiment=cache_sizes", override + "mru"]))


def test_plain_mode_by_itself_is_fine() -> None:
    plain = vars(EngineSettings(threads=1, n_ctx=64, n_batch=16, repack=True))
    assert conflict(plain) is None


def test_a_share_of_this_models_experts_is_no_size_for_another_models_trace() -> None:
    found = conflict(settings_of("forced") | {"cache_mb": None, "cache_fraction": 0.25})
    assert found is not None
    assert "give cache_mb in MiB" in found.words


def test_zero_is_asked_for_and_false_is_not() -> None:
    assert asked({"prefetch": 0}, "prefetch")
    assert asked({"drop_cold_experts": 0.0}, "drop_cold_experts")
    assert not asked({"overlap": False}, "overlap")
    assert asked({"drop_renorm": False}, "drop_renorm")
    assert conflict(settings_of("no cache") | {"prefetch": 0}) is None
    assert conflict(settings_of("predict") | {"prefetch": 0}) is None


def test_the_words_of_a_refusal_are_one_line_with_the_cell_and_the_remedy() -> None:
    with pytest.raises(UsageError) as refused:
        check(compose(["+experiment=matched_pair", "cells.spec2.engine.prefetch=1"]))
    assert str(refused.value) == (
        "cells.spec2.engine.prefetch: prefetch=1 and predict_prefetch=true exclude each other; "
        "set prefetch to null or predict_prefetch to false"
    )


def test_an_automatic_cache_is_a_word_and_any_other_is_refused() -> None:
    override = "cells.cache_off.engine.cache_mb="
    config = check(compose(["+experiment=cache_sizes", override + "auto"]))
    assert config.cells["cache_off"].engine.cache_mb == "auto"
    for word in ("much", "1.5", "true"):
        with pytest.raises(UsageError, match="needs a whole number or auto"):
            check(compose(["+experiment=cache_sizes", override + word]))
    with pytest.raises(UsageError, match=r"cache_mb='auto' and cache_fraction=0\.5 exclude"):
        check(compose(["+experiment=cache_sizes", "cells.cache_half.engine.cache_mb=auto"]))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("drop_cold_experts=nan", "nan is out of range"),
        ("drop_cold_experts=1.5", "at most 1"),
        ("prefetch=9", "at most 8"),
        ("predict_spec_max=9", "at most 8"),
        ("predict_horizon=3", "at most 2"),
        ("predict_horizon=0", "1 or more"),
        ("cache_floor_mb=-1", "0 or more"),
        ("compute_trace=token", "node, layer"),
        ("overlap=1", "true or false"),
        ("forced_routes=7", "text"),
        ("ram_budget_mb=0", "1 or more"),
        ("reserve_mb=-1", "0 or more"),
        ("stats=1", "true or false"),
    ],
)
def test_values_are_checked(setting: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        check(compose(["+experiment=cache_sizes", f"cells.cache_half.engine.{setting}"]))
    assert setting.partition("=")[0] in str(refused.value)


def test_an_older_plan_is_read_with_what_it_did_not_know_switched_off() -> None:
    old = {"threads": 1, "n_ctx": 64, "n_batch": 16, "moe_stream": True, "cache_mb": 8}
    settings = from_json(EngineSettings, old)
    assert conflict(vars(settings)) is None
    assert not settings.overlap
    assert settings.drop_cold_experts is None
    assert set(vars(settings)) >= set(EngineFlags.__annotations__) - {"cache_fraction"}
