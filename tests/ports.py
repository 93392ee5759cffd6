"""Ports for servers that are started, stopped and started again on the same one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path

_OURS: list[socket.socket] = []


def free_port() -> int:
    """A port of this process, until it ends, on which nobody listens.

    Not one that the kernel chooses: those it also gives to connections, so that before a server is
    there, or while it is away, another test's may take it, and one to the absent server may even
    meet itself. Other processes of tests know it by a socket's name, which goes with the process.
    """
    for port in _below_those_of_connections():
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0moe-harness-test-port-{port}")
            with socket.socket() as s:
                s.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
            continue
        _OURS.append(mark)
        return port
    raise AssertionError("no free port")


def _below_those_of_connections() -> Iterator[int]:
    """Downwards, from what the kernel keeps for connections (where that is nearly all, any)."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if lowest > 16_000:
        yield from range(lowest - 1, lowest - 12_000, -1)
    for _ in count():
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = int(s.getsockname()[1])
        yield port
