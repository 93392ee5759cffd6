"""A device that is reached over ssh: a `Link`. Touches the network, and files that are copied.

A link is for one thread at a time, and so is each channel; a channel's may be another than the
link's. paramiko is imported when the first link is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.target_config import SshConfig
from harness.targets.link import Channel, Finished, OnBytes
from harness.targets.ssh_hosts import route

if TYPE_CHECKING:
    from harness.targets.ssh_wire import Connection


class SshLink:
    """Programs and files of one machine over ssh."""

    def __init__(self, config: SshConfig) -> None:
        """Connect. Raises UsageError for what the configuration cannot mean, LinkLost when the
        machine does not answer, DeviceError when it is not the one we know or does not let us in.
        """
        self._hops = route(config)
        self._connection: Connection = self._connect()

    def _connect(self) -> Connection:
        from harness.targets.ssh_wire import Connection

        return Connection(self._hops)

    def call(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Finished:
        """Run a short program to its end, as `Link.call`. One that does not end in time is killed
        there, with its process group."""
        from harness.targets.ssh_exec import run_to_end

        return run_to_end(self._connection, argv, timeout_s=timeout_s, stdin=stdin)

    def open(self, argv: Sequence[str]) -> Channel:
        """Start a program that goes on, as `Link.open`. Once its lines are read and it or the
        connection has ended, `lines` raises LinkLost at every call."""
        from harness.targets.ssh_exec import Lines

        return Lines(self._connection, argv)

    def put(self, source: Path, destination: str, on_bytes: OnBytes | None = None) -> None:
        """Copy a file there, as `Link.put`: what is there already, if it is not longer, is taken
        for the beginning of it."""
        from harness.targets.ssh_files import put_file

        put_file(self._connection, source, destination, on_bytes)

    def get(self, source: str, destination: Path) -> None:
        """Copy a file from there, as `Link.get`; a size other than it has there is an error."""
        from harness.targets.ssh_files import get_file

        get_file(self._connection, source, destination)

    def reconnect(self) -> None:
        """End what there is and connect again, once, as `Link.reconnect`."""
        self._connection.close()
        self._connection = self._connect()

    def close(self) -> None:
        """End the connection; never raises, and waits for nobody."""
        self._connection.close()
