"""The daemon on the device: takes connections of hosts, and does what the test says meanwhile."""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import Any

from .connection import Connection
from .faults import Behaviour
from .services import Services


class Adbd:
    def __init__(
        self, listener: socket.socket, control: socket.socket, behaviour: Behaviour, note: int
    ) -> None:
        self._listener = listener
        self._control = control
        self._behaviour = behaviour
        self._note_to = note
        self._services = Services(behaviour, self._note, self._reboot)
        self._connections: set[Connection] = set()

    def run(self) -> None:
        """Until the device goes down."""
        threading.Thread(target=self._accept, daemon=True).start()
        with self._control.makefile("r", encoding="utf-8") as orders:
            self._say({"event": "ready"})
            for line in orders:
                self._say({"answer": self._obey(json.loads(line))})

    def _say(self, message: dict[str, Any]) -> None:
        self._control.sendall(json.dumps(message).encode() + b"\n")

    def _obey(self, order: dict[str, Any]) -> Any:
        what = order["do"]
        if what == "set":
            self._behaviour.change(order["changes"])
        elif what == "drop":
            for connection in list(self._connections):
                if order["silent"]:
                    connection.fall_silent()
                else:
                    connection.reset()
        elif what == "accept_key":
            for connection in list(self._connections):
                if key := connection.unanswered_key:
                    keys = {*self._behaviour.settings.keys, key}
                    self._behaviour.change({"keys": sorted(keys)})
                    connection.accept_key()
        return {"settings": self._behaviour.settings.as_json(), "hosts": len(self._connections)}

    def _accept(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(sock, self._behaviour, self._services.find)
            threading.Thread(target=self._keep, args=(connection,), daemon=True).start()

    def _keep(self, connection: Connection) -> None:
        self._connections.add(connection)
        try:
            connection.run()
        finally:
            self._connections.discard(connection)

    def _note(self, service: str) -> None:
        os.write(self._note_to, json.dumps(service).encode() + b"\n")

    def _reboot(self, target: str) -> None:
        self._say({"event": "reboot", "target": target})
