"""100 random budgets with the real engine: none aborts, none is exceeded, none changes the text.

Each run stands under an RLIMIT_DATA of just its budget, so what was not planned for cannot be had.
"""

from __future__ import annotations

import json
import random
import re
import resource
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_parts import engine

from harness.models.geometry import Geometry
from harness.models.synth import write_synthetic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

MIB = 2**20
SEED = 20261130
EXIT_REFUSED = 4
# 7 layers of 32 experts, 4 of them of the small size: 50 MiB in all
SHAPE = Geometry("experts of two sizes", 8, 32, 4, 256, 256)
WEIGHTS = "Q4_K+BF16@5-7"
PROMPT = "It is a truth universally acknowledged, that a single man in possession of a good fortune"
# what a plain run computes differently by
PLAIN = (("-t", "1", "-b", "16"), ("-t", "1", "-b", "64"))
MECHANISMS: tuple[tuple[str, ...], ...] = (
    (),
    ("--overlap",),
    ("--prefetch", "2"),
    ("--predict-prefetch",),
    ("--overlap", "--predict-prefetch", "--predict-horizon", "1"),
    ("--dense-weights", "anon"),
    ("--dense-weights", "warm", "--io-threads", "8", "--no-odirect"),
    ("--route-trace", "route.csv", "--io-trace", "io.csv", "--compute-trace", "compute.csv"),
)
DROPPING = ("--drop-cold-experts", "0.9", "--drop-in-prefill")


@dataclass(frozen=True)
class Ended:
    """A run that ended, and the most that was seen of its memory while it went on."""

    code: int
    text: bytes
    error: str
    anon: int
    data: int


def seen(pid: int) -> tuple[int, int]:
    """Resident anonymous memory and VmData, in bytes; 0 where the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    found = dict(re.findall(r"^(RssAnon|VmData):\s+(\d+) kB$", status, re.MULTILINE))
    return int(found.get("RssAnon", 0)) * 1024, int(found.get("VmData", 0)) * 1024


class Runs:
    """Runs of one model, in a folder of their own."""

    def __init__(self, program: Path, model: Path, folder: Path) -> None:
        self.program, self.model, self.folder = program, model, folder

    def run(self, *flags: str, budget_mb: int | None = None) -> Ended:
        argv = [str(self.program), "-m", str(self.model), "-p", PROMPT, "-n", "8", "-c", "256"]
        argv += ["--no-eog", "--telemetry", "run.jsonl", "--csv", "run.csv", *flags]
        if budget_mb is not None:
            argv += ["--ram-budget-mb", str(budget_mb)]

        def limit() -> None:
            if budget_mb is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (budget_mb * MIB, budget_mb * MIB))

        anon = data = 0
        out, err = self.folder / "out", self.folder / "err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                argv,
                cwd=self.folder,
                stdout=stdout,
                stderr=stderr,
                preexec_fn=limit,  # noqa: PLW1509
            )
            while process.poll() is None:
                now = seen(process.pid)
                anon, data = max(anon, now[0]), max(data, now[1])
                time.sleep(0.005)
        return Ended(process.returncode, out.read_bytes(), err.read_text(), anon, data)

    def least_mb(self, *flags: str) -> int:
        """The least budget, by the refusal's own advice.

        A quarter of a MiB more, because two dry runs may differ by a few pages.
        """
        refused = self.run(
            *flags, "--ram-budget-mb", "1"
        )  # without the limit: to find out takes more
        needed = re.search(r"expert arena too small: needs (\d+) bytes", refused.error)
        assert refused.code == EXIT_REFUSED and needed, refused
        return (int(needed[1]) + MIB // 4) // MIB + 1

    def telemetry(self) -> dict[str, Any]:
        lines = (self.folder / "run.jsonl").read_text().splitlines()
        return {r["type"]: r for r in map(json.loads, lines)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("budget")
    write_synthetic(folder / "two.gguf", SHAPE, arch="laguna", weights=WEIGHTS)
    yield Runs(engine(), folder / "two.gguf", folder)


def test_100_random_budgets_hold_and_change_no_byte(runs: Runs) -> None:
    rng = random.Random(SEED)  # noqa: S311
    plain: dict[Sequence[str], bytes] = {}
    least: dict[Sequence[str], int] = {}
    sizes: set[tuple[int, ...]] = set()
    for i in range(100):
        base = rng.choice(PLAIN)
        flags = (*base, *MECHANISMS[i % len(MECHANISMS)])
        if base not in plain:
            plain[base] = runs.run(*base).text
        if flags not in least:
            least[flags] = runs.least_mb(*flags)
        budget_mb = least[flags] + rng.choice((0, rng.randint(0, 8), rng.randint(0, 60)))
        ended = runs.run(*flags, budget_mb=budget_mb)
        said = (flags, budget_mb, ended.code, ended.error)
        assert ended.code == 0, said
        assert ended.text == plain[base], said
        assert 0 < ended.anon <= budget_mb * MIB, said
        assert 0 < ended.data <= budget_mb * MIB, said
        records = runs.telemetry()
        assert records["summary"]["anon_peak_bytes"] <= budget_mb * MIB, said
        arena = records["start"]["arena"]
        sizes.add(tuple(c["slots"] for c in arena["classes"]))
    assert len(sizes) > 20
    assert all(plain.values())


def test_budgets_below_the_least_are_refused(runs: Runs) -> None:
    rng = random.Random(SEED)  # noqa: S311
    for _ in range(10):
        flags = (*rng.choice(PLAIN), *rng.choice(MECHANISMS))
        # a MiB of rounding and pages apart
        budget_mb = runs.least_mb(*flags) - rng.randint(2, 20)
        refused = runs.run(*flags, budget_mb=budget_mb)
        assert refused.code == EXIT_REFUSED, (flags, budget_mb, refused)
        assert refused.text == b""
        error = refused.error.strip().splitlines()
        assert len(error) == 1 and re.search(r"needs \d+ bytes.*allowed \d+", error[0]), error


def test_dropping_holds_its_budget_too(runs: Runs) -> None:
    rng = random.Random(SEED)  # noqa: S311
    least = runs.least_mb(*PLAIN[0], *DROPPING)
    for budget_mb in (least, *(least + rng.randint(0, 40) for _ in range(5))):
        ended = runs.run(*PLAIN[0], *DROPPING, budget_mb=budget_mb)
        assert ended.code == 0, (budget_mb, ended)
        assert ended.anon <= budget_mb * MIB and ended.data <= budget_mb * MIB
