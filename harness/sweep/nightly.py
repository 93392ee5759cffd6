"""Which campaigns a night consists of. Pure but for the names in `conf/`."""

from __future__ import annotations

from collections.abc import Iterable

from harness.configure import compose, conf_dir, load_option, options, parse_overrides
from harness.errors import UsageError
from harness.nightly_config import NightlyConfig, check_night
from harness.sweep.combinations import Combination
from harness.typed import from_mapping, nearest

# of the whole night
_NOT_OF_ENTRIES = ("experiment", "resume", "runs_dir", "plan_only")


def is_night(lines: Iterable[str]) -> bool:
    """Whether the experiment asked for is a sweep of others."""
    names = options(conf_dir(), "experiment")
    for override in parse_overrides(lines):
        if override.key_or_group == "experiment" and not override.is_sweep_override():
            name = override.value()
            return isinstance(name, str) and name in names and is_night_file(name)
    return False


def is_night_file(experiment: str) -> bool:
    """Its file has `nightly`."""
    return "nightly" in (load_option(conf_dir(), "experiment", experiment) or {})


def night_of(lines: Iterable[str]) -> tuple[str, NightlyConfig, list[Combination]]:
    """The night's name, its settings, and its campaigns' command lines.

    What the command line says beside the night's own settings holds for every campaign.
    """
    own: list[str] = []
    for_all: list[str] = []
    for override in parse_overrides(lines):
        key, line = override.key_or_group, str(override.input_line)
        if override.is_sweep_override():
            raise UsageError(
                f"{line!r}: a night is a sweep already; give each value an entry of its own in "
                "nightly.entries"
            )
        is_own = key in ("experiment", "name") or key.split(".")[0] == "nightly"
        (own if is_own else for_all).append(line)
    data = compose(own)
    night = from_mapping(NightlyConfig, data["nightly"], "nightly")
    check_night(night)
    single = [n for n in options(conf_dir(), "experiment") if not is_night_file(n)]
    found = []
    for i, entry in enumerate(night.entries):
        where = f"nightly.entries[{i}]"
        if entry.experiment not in single:
            near = nearest(entry.experiment, single)
            raise UsageError(f"{where}.experiment: no such experiment: {entry.experiment}{near}")
        _check_overrides(f"{where}.overrides", entry.overrides)
        varied = (f"experiment={entry.experiment}", *entry.overrides)
        found.append(Combination((f"+{varied[0]}", *entry.overrides, *for_all), varied))
    return str(data["name"]), night, found


def _check_overrides(where: str, lines: tuple[str, ...]) -> None:
    """What keys and values there may be is found when the entry is composed."""
    for line, override in zip(lines, parse_overrides(lines), strict=True):
        if override.is_sweep_override():
            raise UsageError(
                f"{where}: {line!r}: one campaign takes one value; make an entry for each"
            )
        key = override.key_or_group
        if key in _NOT_OF_ENTRIES or key.split(".")[0] == "nightly":
            raise UsageError(f"{where}: {line!r}: cannot be changed in an entry; leave it out")
