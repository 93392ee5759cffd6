"""A launcher on a device, once it was started, to its end."""

from __future__ import annotations

import contextlib
from pathlib import PurePath

from harness.errors import DeviceError
from harness.targets.remote_lease import RemoteLease
from harness.targets.remote_shell import RemoteShell
from harness.targets.target import CellLost

KILL_S = 60.0
# a device that is away is not waited for here, and whoever interrupts even less
END_S = 3.0


class RemoteRunning:
    """A launcher on the device, found again after a break by the lock that it holds."""

    def __init__(
        self,
        shell: RemoteShell,
        lease: RemoteLease,
        work_dir: PurePath,
        lock: PurePath,
        pid: int | None,
    ) -> None:
        """Of one that was just started. `pid` None: across a break."""
        self._shell = shell
        self._lease = lease
        self._work_dir = work_dir
        self._lock = lock
        self._pid = pid
        self._boot = lease.boot_id
        self._code: int | None = None

    def poll(self) -> int | None:
        """0 when it has left a result, -1 when it has ended without; None while it runs.

        Raises CellLost when the device has restarted meanwhile; DeviceError when it stays away.
        """
        if self._code is not None:
            return self._code
        pulse = self._lease.pulse()
        if self._lease.boot_id != self._boot:
            raise CellLost(f"{self._shell.name}: the device restarted during the cell")
        if pulse.running:
            return None
        self._code = 0 if self._shell.exists(self._work_dir / "result.json") else -1
        return self._code

    def terminate(self) -> None:
        """Ask it to end; on a device that is away it ends by itself."""
        with contextlib.suppress(DeviceError):
            self._shell.verb("end", str(self._lock), timeout_s=END_S, retry=False)

    def kill(self) -> None:
        """End the launcher, and with it the engine; on a device that is away both end anyway."""
        with contextlib.suppress(DeviceError):
            if self._pid is None:
                self._shell.end_holders(self._lock)
            elif self._shell.is_locked(self._lock):
                self._shell.call(["kill", "-9", str(self._pid)], timeout_s=KILL_S)
