"""What a campaign was measured on and with, as tables. Touches nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.report.contents import Contents
from harness.report.shown import Cell, Rows, Shown, Tone
from harness.report.tables import differing_settings, said_of_all, settings_of
from harness.tracking_text import without_secrets

NOT_KNOWN = Cell("not known", absent=True)
_GIB, _MIB = 2**30, 2**20
# shown by themselves
_APART = ("preflight", "settings", "packages")


def environment_table(contents: Contents) -> Shown:
    """All of environment.json in rows of `a.b` and a value; what nobody could find out is said."""
    table = Rows("", ("of", "value"))
    for name, value in _flat(contents.environment.values):
        if name.partition(".")[0] not in _APART:
            table.add(_in_words(name), _value(name, value))
    return table.shown()


def packages_table(contents: Contents) -> Shown:
    """Versions of what a verdict or a stored run depends on."""
    found = contents.environment.values.get("packages")
    table = Rows("", ("package", "version"))
    for name, version in found.items() if isinstance(found, Mapping) else ():
        table.add(str(name), NOT_KNOWN if version is None else str(version))
    return table.shown()


def preflight_table(contents: Contents) -> Shown:
    """What the device was found to be before the first cell, the worst first."""
    table = Rows("", ("level", "about", "found", "what to do"))
    levels = ("failure", "warning", "info")
    found = sorted(
        _mappings(contents, "preflight"),
        key=lambda f: levels.index(f["level"]) if f.get("level") in levels else 0,
    )
    for finding in found:
        level = str(finding.get("level") or "not known")
        tone: Tone = "" if level == "info" else "unsure" if level == "warning" else "bad"
        table.add(
            Cell(level, tone=tone),
            str(finding.get("about") or ""),
            str(finding.get("words") or ""),
            str(finding.get("advice") or "–"),
        )
    return table.shown()


def settings_table(contents: Contents) -> Shown:
    """Of a phone: what was switched for the campaign, and whether it took."""
    table = Rows("", ("setting", "wanted", "before", "now", "took", "why not"))
    for s in _mappings(contents, "settings"):
        took = "yes" if s.get("took") is True else "no" if s.get("took") is False else "not known"
        table.add(
            *(
                "–" if s.get(key) is None else str(s[key])
                for key in ("setting", "wanted", "before", "now")
            ),
            Cell(took, tone="bad" if took == "no" else ""),
            str(s.get("reason") or "–"),
        )
    return table.shown()


def arms_table(contents: Contents) -> Shown:
    """What was compared: the settings in which arms differ, and in a note those of all."""
    arms = contents.plan.arms
    if not arms:
        return Rows("", ("arm",)).shown()
    differing = differing_settings(arms.values())
    notes = [f"in all: {said_of_all(arms.values(), differing)}", *_engines(contents)]
    table = Rows("", ("arm", *differing), notes=notes)
    for name, arm in arms.items():
        own = settings_of(arm)
        table.add(name, *(own[title] for title in differing))
    return table.shown()


def _engines(contents: Contents) -> list[str]:
    """Which engine each arm ran, where they ran several."""
    ran = {
        r.arm: (r.identity.engine_build_id, r.identity.engine_sha256)
        for r in contents.records
        if r.identity.engine_sha256 is not None or r.identity.engine_build_id is not None
    }
    if len(set(ran.values())) < 2:
        return []
    return [
        f"engine of {arm}: build {build or NOT_KNOWN.text}, sha256 {sha256 or NOT_KNOWN.text}"
        for arm, (build, sha256) in ran.items()
    ]


def briefly(contents: Contents) -> list[tuple[str, str]]:
    """Device, engine and model in a few lines, for who reads no further."""
    e = contents.environment.values
    cpu = e.get("cpu") if isinstance(e.get("cpu"), Mapping) else {}
    lines = [
        ("device", [e.get("hostname"), e.get("os"), e.get("kernel")]),
        ("processor", [(cpu or {}).get("model"), _cores(cpu or {}), e.get("architecture")]),
        ("memory", [_size(e.get("mem_total_bytes"))]),
        ("storage of the model", _storage(e.get("model_storage"))),
        ("engine", [e.get("engine_version") or e.get("engine_build_id")]),
        ("model", [e.get("model_path"), _size(e.get("model_bytes")), _hash(e.get("model_sha256"))]),
        ("harness", [e.get("harness_version")]),
    ]
    return [
        (name, ", ".join(str(p) for p in parts if p) or NOT_KNOWN.text) for name, parts in lines
    ]


def _mappings(contents: Contents, key: str) -> list[Mapping[str, Any]]:
    found = contents.environment.values.get(key)
    return [f for f in found if isinstance(f, Mapping)] if isinstance(found, Sequence) else []


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _in_words(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ").replace(".", ": ")


def _value(name: str, value: Any) -> Cell:
    if value is None or value in ("", []):
        return NOT_KNOWN
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if name.endswith("_bytes") and isinstance(value, int):
        return Cell(f"{_size(value)} ({value:,} bytes)" if value >= _MIB else f"{value:,} bytes")
    if isinstance(value, list):
        return Cell(" ".join(map(str, value)))
    return Cell(str(value))


def _size(value: Any) -> str | None:
    if not isinstance(value, int | float):
        return None
    return f"{value / _GIB:.1f} GiB" if value >= _GIB else f"{value / _MIB:.1f} MiB"


def _cores(cpu: Mapping[str, Any]) -> str | None:
    logical = cpu.get("logical")
    return None if logical is None else f"{logical} logical cores"


def _storage(found: Any) -> list[Any]:
    if not isinstance(found, Mapping):
        return []
    return [found.get("filesystem"), found.get("device"), found.get("mount_point")]


def _hash(value: Any) -> str | None:
    return f"sha256 {str(value)[:16]}…" if value else None


def configuration(contents: Contents) -> str:
    """The resolved configuration as JSON, without what names secrets."""
    clean = without_secrets(contents.config)
    return json.dumps(clean, indent=1, ensure_ascii=False, default=str)
