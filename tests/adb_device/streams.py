"""Streams on a connection: bytes both ways, one unanswered message at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from .wire import CLSE, OKAY, WRTE, Message


class StreamClosedError(Exception):
    """The host closed this stream, or the connection is gone."""


class Stream:
    """One service that the host opened. One thread reads; any may write."""

    def __init__(
        self, local: int, remote: int, max_payload: int, send: Callable[[Message], None]
    ) -> None:
        self.local = local
        self.remote = remote
        self.lost = False  # the connection ended, not only the stream
        self._max_payload = max_payload
        self._send = send
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._acknowledged = threading.Semaphore(0)
        self._closed = threading.Event()
        self._close_sent = False

    # what the connection's thread tells

    def arrived(self, data: bytes) -> None:
        self._inbox.put(data)

    def acknowledged(self) -> None:
        self._acknowledged.release()

    def ended(self, lost: bool) -> None:
        self.lost = self.lost or lost
        self._closed.set()
        self._inbox.put(None)
        self._acknowledged.release()

    # what the service does

    def read(self) -> bytes:
        """The next bytes, and leave for the host to send more; b"" at the end."""
        data = self._inbox.get()
        if data is None:
            self._inbox.put(None)
            return b""
        if not self._closed.is_set():
            self._send(Message(OKAY, self.local, self.remote))
        return data

    def write(self, data: bytes) -> None:
        """Raises StreamClosedError."""
        with self._writing:
            for start in range(0, len(data), self._max_payload):
                if self._closed.is_set():
                    raise StreamClosedError
                piece = data[start : start + self._max_payload]
                self._send(Message(WRTE, self.local, self.remote, piece))
                self._acknowledged.acquire()
                if self._closed.is_set():
                    raise StreamClosedError

    def close(self) -> None:
        if not self._close_sent:
            self._close_sent = True
            self._send(Message(CLSE, self.local, self.remote))
        self.ended(lost=False)


class ByteReader:
    """Exactly so many bytes from a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._held = bytearray()

    def take(self, size: int) -> bytes:
        """Raises StreamClosedError when the stream ends before."""
        while len(self._held) < size:
            more = self._stream.read()
            if not more:
                raise StreamClosedError
            self._held += more
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken
