"""Which notes and logs belong to which run of a session, and in which order the runs were.

Reads the files it is named. A log that names other numbers than the run's own summary is of another
run, whatever it is called.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from harness.importers.bmoe_device import DeviceNotes, merged, read_sidecar, read_state
from harness.importers.bmoe_files import SessionFiles, content
from harness.importers.bmoe_logs import DriverBlock, RunLog, driver_blocks, read_log
from harness.importers.bmoe_tokens import TokenFile, read_token_file
from harness.importers.text import decode, natural, number, slug
from harness.importers.write import PassedOver

_TIME = re.compile(r"(20\d{2})-?(\d\d)-?(\d\d)[-_T](\d\d)[-:]?(\d\d)[-:]?(\d\d)(?!\d)")
_SEPARATORS = "-_. "
_WORDS = re.compile(r"[\s,:;()\[\]]+")

ORDER_DRIVER = "that of the driver's log"
ORDER_TIMES = "that of their times"
ORDER_ONE = "that of one"
GUESS_BATTERY = "the battery's temperature at entry"
GUESS_NAMES = "the names of files"


@dataclass(eq=False)
class Cell:
    """One run with all that was noted of it; `tokens` None: only a log is left."""

    name: str
    path: Path
    tokens: TokenFile | None = None
    log: RunLog = field(default_factory=RunLog)
    files: list[Path] = field(default_factory=list)
    sources: list[DeviceNotes] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sha256: str | None = None  # of the run's own file
    order_guessed_by: str | None = None  # None: it is known after which it ran

    @property
    def device(self) -> DeviceNotes:
        """The sidecar before the state before the logs."""
        return merged([*self.sources, self.log.device])


@dataclass
class Session:
    """The cells in their order, which is as good as `order` says."""

    cells: list[Cell]
    order: str
    passed_over: list[PassedOver]
    files: list[Path]  # of several cells: drivers' logs

    @property
    def order_is_known(self) -> bool:
        return self.order in (ORDER_DRIVER, ORDER_TIMES, ORDER_ONE)


def read_session(files: SessionFiles) -> Session:
    """All cells of a session."""
    passed_over = list(files.passed_over)
    cells = _runs(files, passed_over)
    for path in files.logs:
        _attach_log(path, files.directory, cells, passed_over)
    for path, read in [(p, read_sidecar) for p in files.sidecars] + [
        (p, read_state) for p in files.states
    ]:
        cell = _named(path, cells)
        if cell is None:
            passed_over.append(
                PassedOver(_relative(path, files.directory), "there is no run of this name")
            )
            continue
        cell.sources.append(read(decode(content(path))))
        cell.files.append(path)
    for path in files.traces:
        passed_over.append(PassedOver(_relative(path, files.directory), "a trace, not a cell"))
        cell = _named(path, cells)
        if cell is not None:
            cell.notes.append(f"traced while it ran ({path.name}): its speed is that of a trace")
    chains = [(path, _attach_driver(path, cells)) for path in files.drivers]
    _name(cells)
    ordered, order = _in_order(cells, chains)
    return Session(ordered, order, passed_over, list(files.drivers))


def _runs(files: SessionFiles, passed_over: list[PassedOver]) -> list[Cell]:
    cells: list[Cell] = []
    by_content: dict[str, Path] = {}
    for path in files.runs:
        data = content(path)
        sha256 = hashlib.sha256(data).hexdigest()
        first = by_content.setdefault(sha256, path)
        if first is not path:
            passed_over.append(
                PassedOver(
                    _relative(path, files.directory),
                    f"the same bytes as {_relative(first, files.directory)}: one run",
                )
            )
            continue
        cells.append(Cell(path.stem, path, read_token_file(data), files=[path], sha256=sha256))
    return cells


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _named(path: Path, cells: list[Cell]) -> Cell | None:
    """The run that a file is called after: best in the same directory, else the only one.

    `a.out.txt` is called after `a.csv`, unless there is an `a.out.csv`.
    """
    same = [c for c in cells if c.path.stem == path.stem]
    same = same or [c for c in cells if path.stem.startswith(f"{c.path.stem}.")]
    beside = [c for c in same if c.path.parent == path.parent]
    if beside:
        return beside[0]
    return same[0] if len(same) == 1 else None


def _agree(log: RunLog, cell: Cell) -> bool:
    """Nothing in the log's summary speaks against its being the run's."""
    if not log.ended or cell.tokens is None:
        return True
    turns = cell.tokens.turns
    if not turns:  # the run's file may be cut, its log whole
        return (log.tokens or 0) >= len(cell.tokens.rows)
    said = turns[-1].summary
    return all(
        a is None or b is None or abs(a - b) <= 0.0011
        for a, b in ((number(log.said.get(k)), number(said.get(k))) for k in ("tokens", "tok/s"))
    )


def _attach_log(path: Path, root: Path, cells: list[Cell], passed_over: list[PassedOver]) -> None:
    """A log of one run to its run; where there is none, it is a cell without tokens."""
    log = read_log(decode(content(path)))
    cell = _named(path, cells)
    if cell is None:
        cells.append(Cell(path.stem, path, log=log, files=[path]))
    elif not _agree(log, cell):
        passed_over.append(
            PassedOver(
                _relative(path, root),
                f"its summary ({log.said['tokens']} tokens, {log.said['tok/s']} tok/s) is not that "
                f"of {cell.path.name}",
            )
        )
    else:
        _merge(cell, log)
        cell.files.append(path)


def _merge(cell: Cell, log: RunLog) -> None:
    cell.log = RunLog(
        tokens=log.tokens if cell.log.tokens is None else cell.log.tokens,
        said={**log.said, **cell.log.said},
        start={**log.start, **cell.log.start},
        device=merged([cell.log.device, log.device]),
    )


def _attach_driver(path: Path, cells: list[Cell]) -> list[Cell]:
    """The cells of a driver's log in its order; those that left no file are added to `cells`."""
    chain: list[Cell] = []
    for block in driver_blocks(decode(content(path))):
        cell = _of_block(block, [c for c in cells if c not in chain])
        if cell is None:
            cell = Cell(block.name, path, log=block.run)
            cells.append(cell)
        else:
            _merge(cell, block.run)
        chain.append(cell)
    return chain


def _of_block(block: DriverBlock, cells: list[Cell]) -> Cell | None:
    """By name, whole or the end of one, and never against the numbers; else by the numbers."""
    fitting = [c for c in cells if _agree(block.run, c)]
    words = _WORDS.split(block.name)
    exact = [c for c in fitting if c.path.stem == block.name]
    within = [c for c in fitting if c.path.stem in words]
    ends = [c for c in fitting if _ends(c.path.stem, block.name) or _ends(block.name, c.path.stem)]
    for found in (exact, within, ends):
        if len(found) == 1:
            return found[0]
    alike = [c for c in fitting if _same_numbers(block.run, c)]
    if not exact and not within and not ends and len(alike) == 1:
        alike[0].notes.append(f"called {block.name} in the driver's log, found by its numbers")
        return alike[0]
    return None


def _ends(name: str, end: str) -> bool:
    return name.endswith(end) and name != end and name[-len(end) - 1] in _SEPARATORS


def _same_numbers(log: RunLog, cell: Cell) -> bool:
    said = {} if cell.tokens is None else cell.tokens.summary
    keys = ("tokens", "tok/s", "s/tok", "read_MiB")
    return all(k in said and number(log.said.get(k)) == number(said[k]) for k in keys)


def _name(cells: list[Cell]) -> None:
    """Each cell is called after its file, with its directory's name where two are alike."""
    taken: set[str] = set()
    for cell in cells:
        alike = [c for c in cells if c.name == cell.name and c.path.parent != cell.path.parent]
        name = f"{cell.path.parent.name}-{cell.path.stem}" if alike else cell.name
        cell.name = slug(name, taken)
        taken.add(cell.name)


# --- the order -----------------------------------------------------------------------------------


def _in_order(cells: list[Cell], chains: list[tuple[Path, list[Cell]]]) -> tuple[list[Cell], str]:
    """As a driver's log has it, else by time, else a guess. Never by the time of a file.

    A guess is only where one log's cells, or a cell of none, stand among the others.
    """
    placed: set[int] = set()
    units: list[tuple[str, list[Cell]]] = []
    for path, chain in chains:
        unit = [c for c in chain if id(c) not in placed]
        placed |= {id(c) for c in unit}
        units += [(path.stem, unit)] if unit else []
    if len(cells) == 1:
        return cells, ORDER_ONE
    if len(units) == 1 and len(placed) == len(cells):
        return units[0][1], ORDER_DRIVER
    units += [(c.name, [c]) for c in cells if id(c) not in placed]
    for time_of in (_time_in_name, _time_in_state):
        times = {id(c): time_of(c) for c in cells}
        if all(t is not None for t in times.values()):
            return sorted(cells, key=lambda c: times[id(c)] or ""), ORDER_TIMES
    heat = {id(unit): _battery_c(unit[0]) for _, unit in units}
    guess = GUESS_NAMES
    units.sort(key=lambda u: natural(u[0]))
    if all(h is not None for h in heat.values()):
        guess = GUESS_BATTERY
        units.sort(key=lambda u: heat[id(u[1])] or 0.0)
    for _, unit in units[1:]:
        unit[0].order_guessed_by = guess
    return [c for _, unit in units for c in unit], f"a guess, by {guess}"


def _time_in_name(cell: Cell) -> str | None:
    match = _TIME.search(cell.path.stem)
    return "".join(match.groups()) if match else None


def _time_in_state(cell: Cell) -> str | None:
    unix_s = cell.device.entry.unix_s
    return None if unix_s is None else f"{unix_s:020.3f}"


def _battery_c(cell: Cell) -> float | None:
    battery = cell.device.entry.battery
    return None if battery is None else battery.temp_c
