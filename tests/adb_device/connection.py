"""One host's connection: who it is, which services it opened, and how it ends."""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable

from . import auth
from .faults import Behaviour
from .streams import Stream, StreamClosedError
from .wire import AUTH, CLSE, CNXN, OKAY, OPEN, WRTE, Message, Wire, WireError

# a service that runs on a stream until it is over; None: there is no such service
Find = Callable[[str, "Connection"], Callable[[Stream], None] | None]


class Connection:
    def __init__(self, sock: socket.socket, behaviour: Behaviour, find: Find) -> None:
        self.unanswered_key: str | None = None
        self._wire = Wire(sock)
        self._behaviour = behaviour
        self._find = find
        self._streams: dict[int, Stream] = {}
        self._next_stream = 1
        self._token = b""
        self._trusted = False
        self._mute = threading.Event()
        self._over = threading.Event()

    def run(self) -> None:
        """Until it ends; one that fell silent never does, whatever the host does with it."""
        try:
            while not self._mute.is_set():
                message = self._wire.receive()
                if not self._mute.is_set():
                    self._handle(message)
        except (OSError, WireError, ValueError):
            pass
        if self._mute.is_set():
            self._over.wait()
        self._over.set()
        self._wire.socket.close()
        for stream in list(self._streams.values()):
            stream.ended(lost=True)

    # ends

    def reset(self) -> None:
        """RST to the host."""
        linger = struct.pack("ii", 1, 0)
        with contextlib.suppress(OSError):
            self._wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            # a blocked recv holds the socket open: this wakes it, and close() then sends the RST
            self._wire.socket.shutdown(socket.SHUT_RD)

    def fall_silent(self) -> None:
        """The connection stays open, and nothing happens on it any more."""
        self._mute.set()

    # authorisation

    def accept_key(self) -> None:
        """The user of the device says yes to the host's key."""
        if self.unanswered_key is not None and not self._trusted:
            self._welcome()

    def _challenge(self) -> None:
        self._token = secrets.token_bytes(auth.TOKEN_BYTES)
        self._send(Message(AUTH, auth.TOKEN, 0, self._token))

    def _known(self, signature: bytes) -> bool:
        keys = self._behaviour.settings.keys
        return any(auth.signed_by(auth.read_public_key(k), self._token, signature) for k in keys)

    def _welcome(self) -> None:
        settings = self._behaviour.settings
        self._trusted = True
        self.unanswered_key = None
        banner = (
            f"device::ro.product.name={settings.model.lower()};ro.product.model={settings.model};"
            f"ro.product.device={settings.model.lower()};features={','.join(settings.features)}"
        )
        self._send(Message(CNXN, settings.version, settings.max_payload, banner.encode()))

    # messages

    def _send(self, message: Message) -> None:
        """Where the connection is gone nothing is sent; its own thread tells the streams."""
        if delay := self._behaviour.settings.delay_s:
            time.sleep(delay)
        if self._mute.is_set():
            self._over.wait()
        with contextlib.suppress(OSError):
            self._wire.send(message)

    def _handle(self, message: Message) -> None:
        settings = self._behaviour.settings
        if settings.offline:
            return
        if message.command == CNXN:
            self._wire.version = min(message.arg0, settings.version)
            self._wire.max_payload = min(message.arg1, settings.max_payload)
            if settings.auth == "open":
                self._welcome()
            else:
                self._challenge()
        elif message.command == AUTH and not self._trusted:
            self._authorise(message)
        elif self._trusted:
            self._handle_stream(message)

    def _authorise(self, message: Message) -> None:
        if message.arg0 == auth.SIGNATURE:
            if self._known(message.data):
                self._welcome()
            else:
                self._challenge()
        elif message.arg0 == auth.PUBLIC_KEY:
            key = message.data.rstrip(b"\0").decode()
            auth.read_public_key(key)
            self.unanswered_key = key

    def _handle_stream(self, message: Message) -> None:
        if message.command == OPEN:
            self._open(message)
            return
        stream = self._streams.get(message.arg1)
        if stream is None:
            if message.command != CLSE:
                self._send(Message(CLSE, 0, message.arg0))
        elif message.command == WRTE:
            stream.arrived(message.data)
        elif message.command == OKAY:
            stream.acknowledged()
        elif message.command == CLSE:
            stream.ended(lost=False)

    def _open(self, message: Message) -> None:
        name = message.data.rstrip(b"\0").decode("utf-8", "surrogateescape")
        service = self._find(name, self)
        if service is None:
            self._send(Message(CLSE, 0, message.arg0))
            return
        stream = Stream(self._next_stream, message.arg0, self._wire.max_payload, self._send)
        self._next_stream += 1
        self._streams[stream.local] = stream
        self._send(Message(OKAY, stream.local, stream.remote))
        threading.Thread(target=self._run_service, args=(stream, service), daemon=True).start()

    def _run_service(self, stream: Stream, service: Callable[[Stream], None]) -> None:
        try:
            service(stream)
        except StreamClosedError:
            pass
        finally:
            stream.close()
            self._streams.pop(stream.local, None)
