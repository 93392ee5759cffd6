"""A device in a test's hands."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from .faults import Settings, SyncCut
from .layout import DeviceUnavailableError, Layout, give_to_shell, make_base, why_unavailable
from .sensors import Sensors
from .supervisor import processes_of

_START_S = 120.0
_START = "import sys; sys.path.insert(0, {0!r}); from {1}.supervisor import main; main()"


class AdbDevice:
    """From `start` to `stop`, or as a context. The device ends with this process, however it ends.

    `directory`: where its files are made (it takes direct I/O); `data_bytes`: /data is a file
    system of that size; `down_s`: how long a restart takes; `entrance`: the `cgroup.procs` that all
    its processes are put into; `port` 0: a free one.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        directory: Path = Path("/var/tmp"),
        data_bytes: int | None = None,
        down_s: float = 1.0,
        entrance: Path | None = None,
        port: int = 0,
    ) -> None:
        self._settings = settings or Settings()
        self._directory = directory
        self._data_bytes = data_bytes
        self._down_s = down_s
        self._entrance = entrance
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    # its life

    def start(self) -> AdbDevice:
        """Raises DeviceUnavailableError."""
        if reason := why_unavailable():
            raise DeviceUnavailableError(reason)
        self.layout = Layout(make_base(self._directory))
        self.sensors = Sensors(self.layout.sys)
        try:
            self.layout.create(self._data_bytes)
            self._launch()
        except BaseException:
            self.stop()
            raise
        return self

    def _launch(self) -> None:
        task = {
            "base": str(self.layout.base),
            "settings": self._settings.as_json(),
            "down_s": self._down_s,
            "entrance": str(self._entrance or ""),
            "port": self.port,
        }
        package = Path(__file__).parent
        program = _START.format(str(package.parent), package.name)
        ours, theirs = socket.socketpair()
        with theirs, self.layout.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", program, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ours.settimeout(_START_S)
        ours.sendall(json.dumps(task).encode() + b"\n")
        self._control = ours
        self._replies = ours.makefile("r", encoding="utf-8")
        self.port = self._read()["port"]

    def stop(self) -> None:
        """Everything of it is gone when this returns."""
        if self._process is not None:
            self._replies.close()
            self._control.close()
            self._process.wait(timeout=_START_S)
            self._process = None
        shutil.rmtree(self.layout.base, ignore_errors=True)

    def __enter__(self) -> AdbDevice:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # what it is

    @property
    def serial(self) -> str:
        """As `adb -s` takes it after `adb connect`."""
        return f"127.0.0.1:{self.port}"

    @property
    def boot_id(self) -> str:
        return self.layout.boot_id.read_text().strip()

    @property
    def pid(self) -> int:
        """Of its first process, as seen from here; 0 while it is down."""
        return int(self._order("status")["first"])

    def processes(self) -> list[int]:
        return processes_of(self.pid)

    def names(self) -> dict[int, str]:
        """Its processes by their names."""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
        return found

    def path(self, of_device: str) -> Path:
        """A file of the device as this process can open it, while the device is up."""
        return Path(f"/proc/{self.pid}/root") / of_device.lstrip("/")

    def services(self) -> list[str]:
        """All that hosts asked of it, in order."""
        return [json.loads(line) for line in self.layout.services.read_text().splitlines()]

    def log(self) -> str:
        return self.layout.log.read_text(errors="replace")

    def wait_until_up(self, timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._order("status")["up"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the device is not up after {timeout_s} s")
            time.sleep(0.02)

    # what happens to it

    def reboot(self, down_s: float | None = None, silent: bool = False) -> None:
        """All its processes are dead when this returns, and its connections ended; `silent`: hosts
        are not told, as when a radio is switched off."""
        self._order("reboot", down_s=down_s, silent=silent)

    def drop_connections(self, silent: bool = False) -> None:
        """By RST; or `silent`: they stay open, and nothing comes on them any more."""
        self._order("drop", silent=silent)

    def freeze(self, everything: bool = False) -> None:
        """adbd stops, or the whole device. Connections stay, and new ones are not answered."""
        self._order("freeze", all=everything)

    def thaw(self) -> None:
        self._order("thaw")

    @contextlib.contextmanager
    def frozen(self, everything: bool = False) -> Iterator[None]:
        self.freeze(everything)
        try:
            yield
        finally:
            self.thaw()

    def unauthorize(self) -> None:
        """All keys are forgotten; the hosts have to ask again."""
        self.change(auth="keys", keys=())
        self.drop_connections()

    def authorize(self) -> None:
        """The user of the device says yes to the hosts that ask now, and their keys are kept."""
        self._order("accept_key")

    def go_offline(self) -> None:
        """Hosts lose it, connect again, and get no answer."""
        self.change(offline=True)
        self.drop_connections()

    def come_back(self) -> None:
        """After go_offline. Connections that were never answered are ended."""
        self.change(offline=False)
        self.drop_connections()

    def change(self, **settings: Any) -> None:
        """Any of Settings."""
        if isinstance(cut := settings.get("sync_cut"), SyncCut):
            settings["sync_cut"] = {
                "direction": cut.direction,
                "after_bytes": cut.after_bytes,
                "how": cut.how,
            }
        self._order("set", changes=settings)

    def fail_sync_write(self, number: int, of: str = "") -> None:
        """The number-th piece (64 KiB at most) that is pushed from now on finds no space; only
        files with `of` in their paths count."""
        self.change(sync_write_fails_at=number, sync_write_fails_in=of)

    def cut_sync(
        self,
        direction: Literal["send", "recv"],
        after_bytes: int,
        how: Literal["reset", "silent", "close_stream", "short"],
    ) -> None:
        self.change(sync_cut=SyncCut(direction, after_bytes, how))

    def enter_cgroup(self, procs: Path) -> None:
        """All its processes, now and after a restart, go into a cgroup: `procs` is its cgroup.procs
        (tests/quota_parts.py: `CpuQuota.entrance`)."""
        self._order("enter", entrance=str(procs))
        self._move(procs)

    def leave_cgroup(self, procs: Path) -> None:
        """Back to the one around it; what is in a cgroup that is removed would be killed."""
        self._order("enter", entrance="")
        self._move(procs.parent.parent / procs.name)

    def _move(self, procs: Path) -> None:
        """Until no process is found that was not moved: they go on starting others."""
        moved: set[int] = set()
        while new := set(self.processes()) - moved:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    procs.write_text(str(pid))
            moved |= new

    # its made-up surroundings

    def set_temperature(self, zone: str, celsius: float) -> None:
        self.sensors.set_temperature(zone, celsius)

    def set_cap(self, policy: str, khz: int) -> None:
        self.sensors.set_cap(policy, khz)

    def set_battery(self, **values: Any) -> None:
        """Any of `celsius`, `capacity_pct`, `status`, `current_ua`."""
        self.sensors.set_battery(**values)

    def set_plugged(self, kind: Literal["ac", "usb"], online: bool) -> None:
        self.sensors.set_plugged(kind, online)

    def set_thermal_status(self, severity: int) -> None:
        """As `dumpsys thermalservice` says it: 0 none, 1 light, 2 moderate, 3 severe, ..."""
        self._state("thermal_status", str(severity))

    def support_fixed_performance(self, how: Literal["yes", "unknown", "no_hal"]) -> None:
        """`unknown`: the command is refused as before Android 11; `no_hal`: by what the device's
        maker left out."""
        self._state("fixed_performance_support", how)

    def remove_service(self, name: Literal["battery", "thermalservice"]) -> None:
        """`dumpsys` does not find it any more."""
        self._state(f"without_{name}", "")

    @property
    def fixed_performance(self) -> bool:
        path = self.layout.state / "fixed_performance"
        return path.exists() and path.read_text().strip() == "true"

    def setting(self, key: str, table: str = "global") -> str | None:
        """What `settings get` says; None: it was never put."""
        path = self.layout.state / "settings" / table / key
        return path.read_text().removesuffix("\n") if path.exists() else None

    def put_setting(self, key: str, value: str, table: str = "global") -> None:
        directory = self.layout.state / "settings" / table
        directory.mkdir(parents=True, exist_ok=True)
        for place in (directory.parent, directory):
            give_to_shell(place)
        self._state(f"settings/{table}/{key}", value)

    def _state(self, name: str, text: str) -> None:
        path = self.layout.state / name
        path.write_text(f"{text}\n")
        give_to_shell(path)

    # talking to it

    def _order(self, what: str, **more: Any) -> dict[str, Any]:
        self._control.sendall(json.dumps({"do": what, **more}).encode() + b"\n")
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._replies.readline()
        if not line:
            raise DeviceUnavailableError(f"the device has ended: {self.log().strip()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer
