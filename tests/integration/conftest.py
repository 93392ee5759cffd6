"""What the tests of the launcher share: the launcher itself, built once, and ways to run a cell."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cell_parts import FAKE_ENGINE
from launcher_parts import Run, command, result_of
from verb_parts import Board

from harness.build import ensure_engine


@pytest.fixture(scope="session")
def launcher(request: pytest.FixtureRequest) -> Path:
    """The launcher as users get it, from the cache or built now; where other users may run it too.

    MOE_LAUNCHER names one that is there already, such as one built with sanitizers.
    """
    if given := os.environ.get("MOE_LAUNCHER"):
        return Path(given)
    copy = request.config.cache.mkdir("moe-launcher") / "moe-launcher"
    mine = copy.with_suffix(f".{os.getpid()}")  # the other worker copies its own
    shutil.copy(ensure_engine(binary=FAKE_ENGINE).launcher, mine)
    return mine.replace(copy)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest that the harness takes; fake engines read nothing of it. Not to be changed."""
    from harness.models.resolve import write_model

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model({"kind": "synthetic", "geometry": "tiny"}, path, cache_dir=path.parent)
    return path


@pytest.fixture
def cell(launcher: Path, tmp_path: Path) -> Run:
    """Runs one cell in `tmp_path/cell` and returns its result."""

    def run(*program: Any, popen: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        argv = command(launcher, tmp_path / "cell", options, list(program))
        done = subprocess.run(argv, capture_output=True, check=False, timeout=300, **(popen or {}))
        assert done.returncode == 0, done.stderr
        assert done.stdout == b""
        return result_of(tmp_path / "cell")

    return run


def default_signals() -> None:
    """The signals that end a launcher, as an interactive shell would hand them down."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def started(launcher: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a cell without waiting for it; ends it with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*program: Any, **options: Any) -> subprocess.Popen[bytes]:
        argv = command(launcher, tmp_path / "cell", options, list(program))
        # what CI's shell may have ignored, the launcher would go on ignoring
        running.append(subprocess.Popen(argv, preexec_fn=default_signals))  # noqa: PLW1509
        return running[-1]

    yield start
    for process in running:
        process.terminate()
        process.wait(timeout=120)


@pytest.fixture
def board(launcher: Path, tmp_path: Path) -> Iterator[Board]:
    """A device of one's own; what was started on it ends with the test."""
    one = Board(launcher, tmp_path)
    yield one
    one.end()


@pytest.fixture
def output(tmp_path: Path) -> Callable[[], str]:
    return (tmp_path / "cell" / "stdout.txt").read_text


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A phone with two clusters, a battery, and the sensors that phones really have."""
    root = tmp_path / "device"
    files = {
        "proc/meminfo": "MemTotal: 8000 kB\nMemAvailable:  3000 kB\nSwapFree: 500 kB\n",
        "proc/loadavg": "2.50 1.00 0.50 3/900 4242\n",
        "proc/stat": "cpu  100 0 100 800 0 0 0 0 0 0\n",
        "proc/pressure/cpu": "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\n",
        "proc/pressure/memory": "some avg10=0.25 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00\n",
        "sys/class/power_supply/usb/type": "USB\n",
        "sys/class/power_supply/battery/type": "Battery\n",
        "sys/class/power_supply/battery/temp": "314\n",
        "sys/class/power_supply/battery/capacity": "87\n",
        "sys/class/power_supply/battery/status": "Discharging\n",
        "sys/class/power_supply/battery/current_now": "-450000\n",
    }
    zones = [
        ("cpu-milli", "45678"), ("cpu-deci", "456"), ("cpu-whole", "45"), ("trip", "99600"),
        ("disabled", "-274000"), ("absurd", "2147483647"), ("zero", "0"), ("words", "unavailable"),
    ]  # fmt: skip
    for number, (kind, value) in enumerate(zones):
        files[f"sys/class/thermal/thermal_zone{number}/type"] = kind + "\n"
        files[f"sys/class/thermal/thermal_zone{number}/temp"] = value + "\n"
    files["sys/class/thermal/thermal_zone8/type"] = "unreadable\n"
    files["sys/class/thermal/thermal_zone8/temp/a_directory"] = ""
    for policy, cpus, khz in (("policy0", "0 1 2 3", 1800000), ("policy4", "4 5 6 7", 2800000)):
        base = f"sys/devices/system/cpu/cpufreq/{policy}"
        files |= {
            f"{base}/related_cpus": cpus + "\n",
            f"{base}/scaling_max_freq": f"{khz}\n",
            f"{base}/scaling_cur_freq": f"{khz - 600000}\n",
            f"{base}/cpuinfo_max_freq": f"{khz + 200000}\n",
            f"{base}/scaling_governor": "walt\n",
        }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[[str, list[Any]], subprocess.CompletedProcess[bytes]]:
    """Runs a command with a disk of that size at `tmp_path/disk`; prints the result found there."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a small disk needs root and unshare")
    disk = tmp_path / "disk"
    disk.mkdir()

    def run(size: str, argv: list[Any]) -> subprocess.CompletedProcess[bytes]:
        script = (
            'mount -t tmpfs -o size="$1" small "$2" || exit 99; disk=$2; shift 2; "$@"; code=$?;'
            'cat "$disk/result.json"; exit $code'
        )
        return subprocess.run(
            ["unshare", "-m", "sh", "-c", script, "sh", size, disk, *argv],
            capture_output=True,
            check=False,
        )

    done = run("1m", ["true"])
    if done.returncode == 99:
        pytest.skip("mounting is not allowed here")
    return run


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An MLflow store with its tables made, which takes seconds, to be copied by every test."""
    from tracking_parts import write_campaign

    from harness.tracking import log_campaign

    runs = tmp_path_factory.mktemp("store") / "runs"
    log_campaign(write_campaign(runs, "template"), uri=None, runs_dir=runs, experiment="template")
    return (runs / "mlflow.db").read_bytes()


@pytest.fixture
def runs(tmp_path: Path, empty_store: bytes) -> Path:
    """A directory of campaigns with a store."""
    path = tmp_path / "runs"
    path.mkdir()
    (path / "mlflow.db").write_bytes(empty_store)
    return path
