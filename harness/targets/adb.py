"""A phone over adb, by the system's own client. Touches its processes, through `adb_client`.

Every command is one run of the client; a server keeps the connection, which it is the first to
lose. How a program's end is told from a lost connection: `adb_shell`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from harness.errors import DeviceError
from harness.target_config import AdbConfig
from harness.targets import adb_copy, adb_shell
from harness.targets.adb_channel import AdbChannel
from harness.targets.adb_client import complaint, exchange, find_client, run
from harness.targets.adb_devices import (
    Device,
    Trouble,
    connected,
    is_address,
    parse_devices,
    pick,
)
from harness.targets.adb_storage import check_destination
from harness.targets.link import Finished, LinkLost, OnBytes

# A quiet call is asked after that whether anybody is there, and has as long to answer.
QUIET_S = 10.0
PROBE_S = 10.0
# When a link is made again it has been silent for long already, and the device's patience with us
# is under way. Too short means no more than a new connection where the old one would have done.
AGAIN_S = 3.0
# Looks at the list of devices while one is to appear, and how long a listed state takes to settle.
_LOOK_S = 0.2
_MOMENT_S = 3.0
# The client's server starts in 0.02 s; a busy machine may take longer, not this long.
_SERVER_S = 15.0
_SERVER_TRIES = 3
_SERVER_SILENT = "adb's server has not answered"


class AdbLink:
    """See `Link`. `serial` is the device's, also where none was configured; `model` its name."""

    def __init__(self, config: AdbConfig) -> None:
        """Connects. Raises LinkLost or DeviceError as `reconnect` does."""
        self._adb = find_client(config.adb)
        self._patience_s = config.connect_timeout_s
        named = os.environ.get("ANDROID_SERIAL") if config.serial is None else None
        self._where_named = " (named by ANDROID_SERIAL)" if named else ""
        self.serial = config.serial or named or ""
        self.model: str | None = None
        self._channels: list[AdbChannel] = []
        self._start_server()
        self._attach()

    # --- a link -------------------------------------------------------------------------------

    def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        """See `Link`. A program that a signal ended has a negative code, but for SIGINT and
        SIGPIPE, of which the device's shell keeps no trace but 130 and 141."""
        mark = f"moe-{secrets.token_hex(12)}"
        command = adb_shell.framed(argv, mark)
        watch = _Watch(self, argv, mark, timeout_s)
        ended = exchange(
            [*self._client(), "shell", "-T", command.text],
            stdin=command.prefix + stdin,
            tick=watch.tick,
            enough=watch.enough,
        )
        finished = adb_shell.finished(ended.stdout, ended.stderr, mark)
        if finished is None:
            raise self._lost(adb_shell.outside(ended.stderr, mark))
        return finished

    def open(self, argv: Sequence[str]) -> AdbChannel:
        """See `Link`."""
        command = adb_shell.bare(argv)
        words = [*self._client(), "shell", "-T", command.text]
        channel = AdbChannel(words, command.prefix, self.serial)
        self._channels = [c for c in self._channels if not c.is_closed] + [channel]
        return channel

    def put(self, source: Path, destination: str, on_bytes: OnBytes | None = None) -> None:
        """See `Link`. adb cannot go on with a part of a file; it begins anew."""
        check_destination(self.call, destination, PROBE_S)
        # adb replaces what is there once it has begun; until then its size would count as progress
        self.call(["rm", "-f", "--", destination], timeout_s=PROBE_S)
        adb_copy.push(
            self._client(), source, destination, lambda: self._size(destination), on_bytes
        )

    def get(self, source: str, destination: Path) -> None:
        """See `Link`."""
        adb_copy.pull(self._client(), source, destination, lambda: self._size(source), self._probe)

    def reconnect(self) -> None:
        """See `Link`."""
        self._start_server()
        with contextlib.suppress(LinkLost):
            if isinstance(self._look(), Device):
                return self._probe(AGAIN_S)
        # listed as ready, and silent; or the server still believes in what is gone
        self._let_go()
        return self._attach(again=True)

    def close(self) -> None:
        """See `Link`. The server stays: it is the user's."""
        while self._channels:
            self._channels.pop().close()

    # --- the device ---------------------------------------------------------------------------

    def _client(self) -> list[str | bytes]:
        return [self._adb, "-s", self.serial]

    @property
    def _silent(self) -> str:
        return f"{self.serial} has not answered"

    def _start_server(self) -> None:
        for _ in range(_SERVER_TRIES):
            ended = run([self._adb, "start-server"], _SERVER_S, _SERVER_SILENT)
            if ended.code == 0:
                return
            time.sleep(_LOOK_S)  # it may have met one that was just ending
        said = complaint(ended.text) or f"it ended with {ended.code}; is it adb's client?"
        raise LinkLost(f"adb's server cannot be reached by {self._adb}: {said}")

    def _look(self) -> Device | Trouble:
        listing = run([self._adb, "devices", "-l"], _SERVER_S, _SERVER_SILENT)
        return pick(parse_devices(listing.stdout.decode(errors="replace")), self.serial or None)

    def _attach(self, again: bool = False) -> None:
        """Wait until the device is there, and see that its shell can be used.

        `again`: it could be used before, so that there is nothing that may not end. A phone that
        restarts is unauthorized for a while, and one whose user has to accept the key can wait.
        """
        started = time.monotonic()
        refused = self._connect()
        while not isinstance(found := self._look(), Device):
            passed = time.monotonic() - started
            waits = {"no": 0.0, "moment": _MOMENT_S, "long": self._patience_s}
            if refused or passed > min(waits[found.wait], self._patience_s):
                trouble = refused or found
                text = f"{trouble.text}{self._where_named}"
                raise LinkLost(text) if again or trouble.may_end else DeviceError(text)
            time.sleep(_LOOK_S)
        self.serial, self.model = found.serial, found.model
        self._check_features()
        self._probe()

    def _connect(self) -> Trouble | None:
        """For a device on the network: ask the server to connect to it."""
        if not is_address(self.serial):
            return None
        if not isinstance(self._look(), Device):
            self._let_go()  # of an attempt that came to nothing adb says "already connected"
        late = f"{self.serial} (is it on this network, and awake?) has not answered"
        answer = run([self._adb, "connect", self.serial], self._patience_s, late)
        trouble = connected(answer.stdout.decode(errors="replace"))
        if trouble is None:
            return None
        return Trouble(f"{self.serial}: {trouble.text}", trouble.wait, trouble.may_end)

    def _let_go(self) -> None:
        """Make the server give up the connection that it believes in."""
        how = ["disconnect", self.serial] if is_address(self.serial) else ["reconnect"]
        run([*self._client(), *how], _SERVER_S, _SERVER_SILENT)

    def _check_features(self) -> None:
        """Without this one the device keeps exit codes and standard error for itself."""
        ended = run([*self._client(), "features"], PROBE_S, self._silent)
        if ended.code != 0:
            raise self._lost(ended.text)
        if "shell_v2" not in ended.stdout.decode(errors="replace").split():
            raise DeviceError(
                f"device {self.serial} is too old: its adb does not pass on exit codes (shell_v2, "
                "Android 7 and later); use another device, or ssh to this one"
            )

    def _probe(self, patience_s: float | None = None) -> None:
        """Does a program run there? Raises LinkLost when not in time, PROBE_S by itself."""
        mark = f"moe-{secrets.token_hex(12)}"
        command = adb_shell.framed(["true"], mark)
        words = [*self._client(), "shell", "-T", command.text]
        ended = run(words, patience_s or PROBE_S, self._silent)
        if adb_shell.finished(ended.stdout, ended.stderr, mark) is None:
            raise self._lost(adb_shell.outside(ended.stderr, mark))

    def _size(self, path: str) -> int | None:
        """Bytes of a file there; None when there is no such file."""
        # the first Androids that have `stat` have no -L
        script = '[ -f "$1" ] && { stat -L -c %s "$1" 2>/dev/null || stat -c %s "$1"; }'
        answer = self.call(["sh", "-c", script, "sh", path], timeout_s=2 * PROBE_S)
        text = answer.stdout.decode(errors="replace").strip()
        return int(text) if answer.code == 0 and text.isdigit() else None

    def _lost(self, said: str) -> LinkLost:
        reason = complaint(said) or "adb ended before the program there did"
        return LinkLost(f"the connection to {self.serial} broke: {reason}")

    def _end_there(self, pid: int) -> None:
        """Kill a shell and its group, while it is sure to be the one."""
        script = f"kill -KILL -{pid} 2>/dev/null || kill -KILL {pid}"
        run([*self._client(), "shell", "-T", script], PROBE_S, self._silent)


class _Watch:
    """Decides how long a call may go on."""

    def __init__(self, link: AdbLink, argv: Sequence[str], mark: str, timeout_s: float) -> None:
        self._link, self._argv, self._mark, self._timeout_s = link, argv, mark, timeout_s
        self._started = self._heard_at = time.monotonic()
        self._bytes = 0
        self._pid: int | None = None

    def enough(self, out: bytearray, err: bytearray) -> bool:
        """Something that the program left behind may keep its pipes open; we need no more."""
        self._pid = self._pid or adb_shell.shell_pid(err[:4096], self._mark)
        return adb_shell.is_whole(out, err, self._mark)

    def tick(self, size: int) -> None:
        """See `Tick`."""
        now = time.monotonic()
        if size != self._bytes:
            self._bytes, self._heard_at = size, now
        if now > self._started + self._timeout_s:
            if self._pid is not None:
                self._link._end_there(self._pid)
            self._link._probe()  # else it is not the program that is slow
            raise DeviceError(
                f"{adb_copy.shown(self._argv[0])} on {self._link.serial} has not ended within "
                f"{self._timeout_s:g} s"
            )
        if now > self._heard_at + QUIET_S:
            self._link._probe()
            self._heard_at = time.monotonic()
