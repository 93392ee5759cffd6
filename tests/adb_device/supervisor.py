"""The process that boots a device again and again, on orders of the test; it ends with the test."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from . import kernel
from .adbd import Adbd
from .faults import Behaviour, Settings
from .layout import Layout
from .namespace import boot, listen_on, reserve

_ANSWER_S = 120.0


class OrderError(Exception):
    """One line: why an order cannot be carried out."""


class Supervisor:
    def __init__(self, control: socket.socket, task: dict[str, Any]) -> None:
        self._control = control
        self._layout = Layout(Path(task["base"]))
        self._settings = Settings().changed(task["settings"])
        self._down_s: float = task["down_s"]
        self._entrance = Path(task["entrance"]) if task["entrance"] else None
        self._reserved = reserve(task["port"])
        self._port: int = self._reserved.getsockname()[1]
        self._adbd: socket.socket | None = None
        self._watcher = self._first = self._boots = 0
        self._frozen = False
        self._waiting: list[dict[str, Any]] = []  # orders to a frozen device
        self._boot_at: float | None = None
        self._kept: list[socket.socket] = []  # whose device is gone, and whose hosts do not know

    def run(self) -> None:
        self._boot()
        self._answer({"port": self._port})
        buffer = b""
        with selectors.DefaultSelector() as events:
            events.register(self._control, selectors.EVENT_READ)
            while True:
                watched = self._adbd
                if watched is not None:
                    events.register(watched, selectors.EVENT_READ)
                ready = events.select(self._wait_s())
                if watched is not None:
                    events.unregister(watched)
                if self._boot_at is not None and time.monotonic() >= self._boot_at:
                    self._boot()
                for key, _ in ready:
                    if key.fileobj is not self._control:
                        self._hear_adbd()
                        continue
                    more = self._control.recv(1 << 16)
                    if not more:
                        return
                    *lines, buffer = (buffer + more).split(b"\n")
                    for line in lines:
                        self._answer(self._safely(json.loads(line)))

    def _answer(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def _wait_s(self) -> float | None:
        return None if self._boot_at is None else max(0.0, self._boot_at - time.monotonic())

    def _safely(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._obey(order)
        except (OrderError, OSError, TypeError, ValueError) as e:
            return {"error": f"{order['do']}: {e}"}

    # orders

    def _obey(self, order: dict[str, Any]) -> dict[str, Any]:
        what = order["do"]
        if what == "reboot":
            down_s = order["down_s"]
            if order["silent"]:
                self._kept += connections_of(self._first)
            self._go_down(self._down_s if down_s is None else down_s)
        elif what == "freeze":
            self._signal_device(signal.SIGSTOP, order["all"])
            self._frozen = True
        elif what == "thaw":
            self._signal_device(signal.SIGCONT, True)
            self._frozen = False
            orders, self._waiting = self._waiting, []
            for waiting in orders:
                self._pass_on(waiting)
        elif what == "enter":
            self._entrance = Path(order["entrance"]) if order["entrance"] else None
        elif what in ("set", "drop", "accept_key"):
            if what == "set":
                self._settings = self._settings.changed(order["changes"])
            self._pass_on(order)
        elif what != "status":
            raise OrderError("no such order")
        return self._status()

    def _status(self) -> dict[str, Any]:
        return {
            "up": self._adbd is not None,
            "boots": self._boots,
            "first": self._first,
            "settings": self._settings.as_json(),
        }

    def _pass_on(self, order: dict[str, Any]) -> None:
        if self._frozen:
            self._waiting.append(order)
        elif self._adbd is not None:
            self._adbd.sendall(json.dumps(order).encode() + b"\n")
            answer = self._next_reply()
            self._settings = Settings().changed(answer["settings"])

    # the device

    def _boot(self) -> None:
        self._boot_at = None
        ours, theirs = socket.socketpair()
        behaviour = Behaviour(self._settings)
        note = os.open(self._layout.services, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        listener = listen_on(self._port)

        def adbd() -> None:
            ours.close()
            self._control.close()
            self._reserved.close()
            Adbd(listener, theirs, behaviour, note).run()

        if self._boots:
            self._layout.new_boot()
        self._watcher, self._first = boot(self._layout, self._entrance, adbd)
        self._boots += 1
        os.close(note)
        listener.close()
        theirs.close()
        ours.settimeout(_ANSWER_S)
        self._adbd = ours
        while self._next_line() != {"event": "ready"}:
            pass

    def _go_down(self, down_s: float) -> None:
        """Every process of the device is dead when this returns."""
        if self._watcher:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, signal.SIGKILL)
            os.waitpid(self._watcher, 0)
            self._watcher = self._first = 0
        if self._adbd is not None:
            self._adbd.close()
            self._adbd = None
        self._frozen = False
        self._waiting = []
        self._boot_at = time.monotonic() + down_s

    def _signal_device(self, number: int, everything: bool) -> None:
        if self._adbd is None:
            raise OrderError("the device is down")
        for pid in processes_of(self._first):
            if everything or _name(pid) == "adbd":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    # what adbd says

    def _next_line(self) -> dict[str, Any]:
        assert self._adbd is not None
        data = b""
        while not data.endswith(b"\n"):
            more = self._adbd.recv(1)
            if not more:
                raise OrderError("the device's adbd has ended")
            data += more
        message: dict[str, Any] = json.loads(data)
        return message

    def _next_reply(self) -> dict[str, Any]:
        while True:
            message = self._next_line()
            if "answer" in message:
                reply: dict[str, Any] = message["answer"]
                return reply
            self._handle_event(message)

    def _hear_adbd(self) -> None:
        if self._adbd is None:
            return
        try:
            self._handle_event(self._next_line())
        except (OrderError, OSError):
            # init is gone, and so is all else: adbd crashed, or something killed it
            print("adbd ended by itself", file=sys.stderr, flush=True)
            self._go_down(self._down_s)

    def _handle_event(self, message: dict[str, Any]) -> None:
        if message.get("event") == "reboot":
            self._go_down(self._down_s)

    def end(self) -> None:
        self._go_down(0.0)


def processes_of(first: int) -> list[int]:
    """All that are in the process namespace of a device's first one."""
    wanted = _namespace(first)
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if wanted is not None and _namespace(pid) == wanted]


def connections_of(first: int) -> list[socket.socket]:
    """Those that hosts have to this device, which now outlive its adbd."""
    found = []
    for pid in processes_of(first):
        if _name(pid) != "adbd":
            continue
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if not str(entry.readlink()).startswith("socket:"):
                continue
            sock = socket.socket(fileno=kernel.copy_of_handle(pid, int(entry.name)))
            try:
                if sock.family != socket.AF_INET:
                    raise OSError
                sock.getpeername()
            except OSError:
                sock.close()
            else:
                found.append(sock)
    return found


def _namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    with control.makefile("r", encoding="utf-8", buffering=1) as first:
        task = json.loads(first.readline())
    kernel.set_name("adb-device")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    supervisor = Supervisor(control, task)
    try:
        supervisor.run()
    finally:
        supervisor.end()
    # after an error the test is there to read the log, and removes all this
    shutil.rmtree(task["base"], ignore_errors=True)
