"""Command line overrides to a checked configuration, through Hydra's compose API. Reads `conf/`.

Hydra is used as a library: no working directory is changed, nothing is written, no logging is set
up. Every override is checked against the groups and keys that exist before Hydra sees it, so that a
mistake is answered with the nearest names in one line. Overrides of `cells` are applied here, after
composition: `cells.NAME=FILE` stands for the settings in `conf/cell/FILE.yaml`, and
`cells.NAME.engine.io_threads=4` then changes one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from harness.errors import UsageError
from harness.memory_config import KEYS_ONCE, OPTIONS_ONCE
from harness.schema import known_keys
from harness.typed import nearest
from harness.validation import check_config, merge_cells

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override

    from harness.schema import Config

MAIN = "config"
# one's own devices and settings, ignored by git: local/default.yaml, local/target/NAME.yaml
LOCAL = "local"
# groups whose options have keys of their own
OPEN_GROUPS = ("model", "target")


def conf_dir() -> Path:
    """The copy inside an installed package, or `conf/` of the source tree."""
    here = Path(__file__).resolve().parent
    for found in (here / "_conf", here.parent / "conf"):
        if (found / f"{MAIN}.yaml").is_file():
            return found
    raise UsageError(f"no conf/{MAIN}.yaml beside {here}: the installation is incomplete")


def groups(conf: Path) -> list[str]:
    return sorted(p.name for p in conf.iterdir() if p.is_dir() and any(p.glob("*.yaml")))


def options(conf: Path, group: str) -> list[str]:
    """The names that `group=NAME` accepts."""
    return sorted(_files(conf, group))


def _files(conf: Path, group: str) -> dict[str, Path]:
    """The options of a group by name: shipped ones, and one's own in `local/<group>/`."""
    own = (conf / LOCAL / group).glob("*.yaml") if group != LOCAL else ()
    return {p.stem: p for p in (*own, *(conf / group).glob("*.yaml"))}


def load_option(conf: Path, group: str, name: str) -> Any:
    """What the file of one option says, uncomposed."""
    return load_yaml(_files(conf, group)[name])


def comment_of(conf: Path, group: str, name: str) -> list[str]:
    """The lines of comment at the head of an option's file, which say what it is for."""
    found = []
    for line in _files(conf, group)[name].read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            found.append(line.removeprefix("#").removeprefix(" "))
    return found


def described(conf: Path, group: str) -> list[tuple[str, str]]:
    """Each option of a group with the first comment line of its file."""
    return [(n, next(iter(comment_of(conf, group, n)), "")) for n in options(conf, group)]


def compose(overrides: Iterable[str]) -> dict[str, Any]:
    """The composed configuration as plain data: every override is of a key that exists, cells are
    settings (names of files resolved) not yet merged over `cell`. Values are not checked.
    """
    conf = conf_dir()
    for_hydra: list[str] = []
    for_cells: list[Override] = []
    for override in _parse(list(overrides)):
        key = override.key_or_group
        if key == "cells" or key.startswith("cells."):
            for_cells.append(override)
        else:
            for_hydra.append(_checked(override, conf))
    data = _compose(for_hydra, conf)
    _fill_cells(data, for_cells, conf)
    return data


def check(data: Mapping[str, Any]) -> Config:
    """The composed configuration, typed; UsageError with one line for the first fault."""
    if not data["cells"]:
        raise UsageError(
            "nothing to run: choose an experiment with +experiment=NAME, "
            f"NAME one of: {', '.join(options(conf_dir(), 'experiment'))}"
        )
    return check_config(data)


def resolved(data: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as stored with a campaign: every cell complete in itself.

    What only a sweep of experiments uses is not a campaign's.
    """
    return {key: value for key, value in merge_cells(data).items() if key != "nightly"}


def overridden(stored: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A stored configuration with the overrides of single keys laid over it, values unchecked.

    Raises UsageError for a group: what it chose cannot be told from what is stored.
    """
    conf = conf_dir()
    result: dict[str, Any] = _copied(stored)
    for override in _parse(list(overrides)):
        key = override.key_or_group
        if override.is_delete() or (key in groups(conf) and not isinstance(override.value(), dict)):
            raise UsageError(
                f"{override.input_line}: cannot be told from what the campaign was started with; "
                "leave it out, or repeat the whole first command line"
            )
        node: Any = result
        *path, last = key.split(".")
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise UsageError(f"{key}: the campaign has no such key")
        node[last] = override.value()
    return result


def _copied(value: Any) -> Any:
    return {k: _copied(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def to_yaml(data: Mapping[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=100)
    return text


def load_yaml(path: Path) -> Any:
    """One YAML file with OmegaConf's rules for scalars (1e3 is a number; no duplicate keys)."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (yaml.YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{path}: not readable as YAML: {_one_line(e)}") from None


# --- overrides -----------------------------------------------------------------------------------


def parse_overrides(lines: Iterable[str]) -> list[Override]:
    """By Hydra's own grammar; a value may stand for several, which only a sweep can use.

    Names that a glob() chooses from are the options of its group, and of conf/cell for `cells.X`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, names = OverridesParser.create(), _Options(conf_dir())
    parsed = []
    for line in lines:
        try:
            override = parser.parse_override(line)
        except HydraException as e:
            raise UsageError(
                f"{line!r}: not readable as key=value ({_first_line(e)}); "
                "quote a value with special characters: 'key=\"value\"'"
            ) from None
        override.config_loader = cast("ConfigLoader", names)
        parsed.append(override)
    return parsed


class _Options:
    """The one thing that Hydra asks of a ConfigLoader to resolve a glob()."""

    def __init__(self, conf: Path) -> None:
        self._conf = conf

    def get_group_options(self, group: str, results_filter: object = None) -> list[str]:
        del results_filter
        return options(self._conf, "cell" if re.fullmatch(r"cells\.[^.]+", group) else group)


def _parse(lines: list[str]) -> list[Override]:
    parsed = []
    for line, override in zip(lines, parse_overrides(lines), strict=True):
        if override.is_sweep_override():
            raise UsageError(
                f"{line!r}: several values make a campaign each, which needs -m "
                "(python -m harness -m ...); a list is written key=[a,b], "
                "a text with commas key='\"a,b\"'"
            )
        if override.key_or_group == "hydra" or override.key_or_group.startswith("hydra."):
            raise UsageError(
                f"{line!r}: the harness keeps Hydra's own settings fixed; leave it out"
            )
        parsed.append(override)
    return parsed


def _checked(override: Override, conf: Path) -> str:
    """The override as Hydra shall see it, once its group and option, or its key, are known."""
    key, line = override.key_or_group, str(override.input_line)
    value = None if override.is_delete() else override.value()
    if key in groups(conf) and not isinstance(value, dict):
        if override.is_delete():
            return line
        names = options(conf, key)
        for name in value if isinstance(value, list) else [value]:
            if name is not None and name not in names:
                if key == "memory" and str(name) in OPTIONS_ONCE:
                    raise UsageError(f"{line}: is no more; {OPTIONS_ONCE[str(name)]}")
                raise UsageError(f"{key}={name}: no such {key}{nearest(str(name), names)}")
        # the experiment is the one group without a default: `experiment=X` means `+experiment=X`
        return "+" + line.lstrip("+") if key == "experiment" else line
    _check_key(key, conf)
    if override.is_delete():
        return line
    # every key exists in the defaults, so adding and changing are the same thing; only the keys of
    # a model, say, depend on which one is chosen, and Hydra refuses those that the chosen one lacks
    return line.lstrip("+") if _open_group(key) else "++" + line.lstrip("+")


def _check_key(key: str, conf: Path) -> None:
    """Refuse a key that does not exist, naming the nearest ones."""
    known = known_keys()
    group = _open_group(key)
    if group is not None:
        known += _option_keys(conf, group)
    if key in known:
        return
    if key in KEYS_ONCE:
        raise UsageError(f"{key}: is {KEYS_ONCE[key]} now, as the ladder is the design's")
    leaf_of = [k for k in known if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
    hint = nearest(key, {*known, *groups(conf), "cells"}, "keys")
    if leaf_of and "did you mean" not in hint:
        hint = "; did you mean " + " or ".join(repr(k) for k in leaf_of[:3]) + "?"
    raise UsageError(f"{key}: unknown key{hint}")


def _open_group(key: str) -> str | None:
    """The group of a key that exists only with some of the group's options."""
    return next((group for group in OPEN_GROUPS if key.startswith(f"{group}.")), None)


def _option_keys(conf: Path, group: str) -> list[str]:
    """The keys that stand in the files of the group, whichever is chosen."""
    found: set[str] = set()
    for file in _files(conf, group).values():
        found.update(load_yaml(file) or {})
    return [f"{group}.{key}" for key in sorted(found - {"defaults"})]


# --- composition ---------------------------------------------------------------------------------


def _compose(overrides: list[str], conf: Path) -> dict[str, Any]:
    import yaml
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(str(conf), job_name="harness", version_base="1.3"):
            own = f"hydra.searchpath=[{json.dumps(f'file://{conf / LOCAL}')}]"
            local = [own] if (conf / LOCAL).is_dir() else []
            composed = hydra_compose(MAIN, [*local, *overrides])
        data = OmegaConf.to_container(composed, resolve=True)
    # ValueError: a group set to null
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as e:
        absent = re.match(r"Could not override '(([a-z]+)\.[^']+)'", str(e))
        if absent and absent[2] in OPEN_GROUPS:
            group = absent[2]
            raise UsageError(
                f"{absent[1]}: the chosen {group} has no such key; choose another with "
                f"{group}=NAME ({', '.join(options(conf, group))})"
            ) from None
        raise UsageError(f"configuration: {_one_line(e)}") from None
    if not isinstance(data, dict):
        raise UsageError(f"{conf / MAIN}.yaml: needs keys and values")
    return {str(k): v for k, v in data.items()}


def _fill_cells(data: dict[str, Any], overrides: list[Override], conf: Path) -> None:
    """Resolve names of conf/cell files in `cells`, then apply the command line's overrides."""
    cells = data.get("cells")
    if not isinstance(cells, dict):
        raise UsageError("cells: needs NAME: SETTINGS pairs")
    for name, value in cells.items():
        cells[name] = _cell(str(name), value, conf)
    for override in overrides:
        path = override.key_or_group.split(".")[1:]
        if override.is_delete():
            _delete(cells, path, override)
            continue
        value = override.value()
        if not path:
            if not isinstance(value, dict):
                raise UsageError("cells: needs NAME: SETTINGS pairs, cells={a:baseline,b:plain}")
            cells.clear()
            cells.update({str(n): _cell(str(n), v, conf) for n, v in value.items()})
        elif len(path) == 1:
            cells[path[0]] = _cell(path[0], value, conf)
        else:
            _set(cells, path, value)


def _cell(name: str, value: Any, conf: Path) -> Any:
    if not isinstance(value, str):
        return value
    names = options(conf, "cell")
    if value not in names:
        raise UsageError(f"cells.{name}: no file conf/cell/{value}.yaml{nearest(value, names)}")
    return load_yaml(conf / "cell" / f"{value}.yaml") or {}


def _delete(cells: dict[str, Any], path: list[str], override: Override) -> None:
    node: Any = cells
    for part in path[:-1]:
        node = node.get(part) if isinstance(node, dict) else None
    if not path or not isinstance(node, dict) or path[-1] not in node:
        key = override.key_or_group
        raise UsageError(f"~{key}: there is nothing to remove{nearest('.'.join(path), cells)}")
    del node[path[-1]]


def _set(cells: dict[str, Any], path: list[str], value: Any) -> None:
    if path[0] not in cells:
        raise UsageError(
            f"cells.{'.'.join(path)}: no cell is called {path[0]!r}{nearest(path[0], cells)}"
        )
    if cells[path[0]] is None:
        cells[path[0]] = {}
    node = cells[path[0]]
    if not isinstance(node, dict):
        raise UsageError(f"cells.{path[0]}: found {node!r}; needs settings, or a conf/cell file")
    for part in path[1:-1]:
        if not isinstance(node.get(part), dict):
            node[part] = {}
        node = node[part]
    node[path[-1]] = value


def _one_line(error: Exception) -> str:
    """The message of a library's error, and of its cause, without line breaks."""
    parts = [str(error)]
    if error.__cause__ is not None and str(error.__cause__) not in parts[0]:
        parts.append(str(error.__cause__))
    return re.sub(r"\s+", " ", "; ".join(p for p in parts if p)).strip()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
