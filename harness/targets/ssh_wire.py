"""A connection to a machine, over as many others as lie on the way: host keys, logging in, and
noticing that the other end has died. Touches the network.

paramiko's keepalive asks for no answer, and a cut network tells nobody, so a `Watch` asks while
nothing comes and ends the connection when no answer does.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import paramiko
from paramiko.common import MSG_CHANNEL_REQUEST
from paramiko.ssh_exception import IncompatiblePeer

from harness.errors import DeviceError
from harness.targets.link import LinkLost
from harness.targets.ssh_hosts import Hop
from harness.targets.ssh_keys import log_in
from harness.targets.ssh_known import Server, check_key, known_types, read_known
from harness.targets.ssh_streams import Command, Heard, Stream, connect

# silence after which the other end is asked for a sign of life, and after which it counts as dead
ASK_AFTER_S = 3.0
DEAD_AFTER_S = 10.0
TICK_S = 0.25
WINDOW_BYTES = 1 << 22
# those that need no separate checksum, whose computation in Python costs more than the cipher
FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
SIGNAL_NAMED_BY_NONE = -255  # servers name the usual signals only
KEY_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}

# its threads tell their troubles to a log, which Python prints when nobody has set one up; what
# matters of that is in our own messages
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


def _channel_request(channel: Any, message: paramiko.Message) -> None:
    """As paramiko's own, which drops the name of the signal that ended a program."""
    at = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        channel.transport.ended_by[channel.get_id()] = message.get_text()
    message.packet.seek(at)
    _TRANSPORT_HANDLERS[MSG_CHANNEL_REQUEST](channel, message)


_TRANSPORT_HANDLERS: dict[int, Any] = dict(paramiko.Transport._channel_handler_table)  # type: ignore[attr-defined]


class Transport(paramiko.Transport):
    """paramiko's, which also tells which signal ended a program, and what the server says when it
    ends the connection."""

    _channel_handler_table: ClassVar = {
        **_TRANSPORT_HANDLERS,
        MSG_CHANNEL_REQUEST: _channel_request,
    }

    def __init__(self, heard: Heard, hop: Hop) -> None:
        super().__init__(heard, default_window_size=WINDOW_BYTES)  # type: ignore[arg-type]
        self.heard = heard
        self.ended_by: dict[int, str] = {}
        self.one_question = threading.Lock()
        self.farewell = ""
        self.banner_timeout, self.auth_timeout = hop.connect_timeout_s, hop.timeout_s
        self.handshake_timeout = 2 * hop.connect_timeout_s  # `start_client` gives up before
        options = self.get_security_options()
        fast = tuple(name for name in FAST_CIPHERS if name in options.ciphers)
        options.ciphers = fast + tuple(c for c in options.ciphers if c not in fast)

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        message.get_int()
        self.farewell = " ".join(message.get_text().split())[:200]

    def run(self) -> None:
        """As paramiko's; what it does not expect itself ends the connection, without a word on
        standard error."""
        try:
            super().run()
        except Exception:
            self.close()

    def exit_code(self, channel: paramiko.Channel) -> int | None:
        """How a program ended, as of `Finished`; None when the server did not say."""
        name = self.ended_by.get(channel.get_id())
        if name is not None:
            number = getattr(signal, f"SIG{name}", None)
            return SIGNAL_NAMED_BY_NONE if number is None else -int(number)
        return channel.recv_exit_status() if channel.exit_status >= 0 else None


class Question(threading.Thread):
    """Asks the machine for an answer; in a thread, since it waits where the network takes nothing.

    The answer comes behind all that the machine had to say when it was asked.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__(daemon=True, name="ssh-question")
        self._transport = transport

    def run(self) -> None:
        # one at a time: paramiko takes any answer for that to the latest
        with contextlib.suppress(Exception), self._transport.one_question:
            self._transport.global_request("keepalive@openssh.com", wait=True)

    def answered(self) -> bool:
        return not self.is_alive()


class Watch(threading.Thread):
    """Ends a connection whose other end says nothing though it is asked."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(daemon=True, name="ssh-watch")
        self._connection = connection
        self._over = threading.Event()

    def end(self) -> None:
        self._over.set()

    def run(self) -> None:
        asking: Question | None = None
        signs, silent_s, before = self._connection.signs(), 0.0, time.monotonic()
        while not self._over.wait(TICK_S):
            now = time.monotonic()
            # a tick that comes late is our own pause (a stopped process), not the other's
            silent_s += min(now - before, 4 * TICK_S)
            before = now
            if (now_signs := self._connection.signs()) != signs:
                signs, silent_s = now_signs, 0.0
            if silent_s >= DEAD_AFTER_S:
                self._connection.give_up(f"no sign of life for {DEAD_AFTER_S:.0f} s")
                return
            if silent_s >= ASK_AFTER_S and (asking is None or asking.answered()):
                asking = self._connection.ask()


class Connection:
    """A way to a machine that has let us in. Raises LinkLost or DeviceError when there is none."""

    def __init__(self, hops: Sequence[Hop]) -> None:
        self.hop = hops[-1]
        self._transports: list[Transport] = []
        self._command: Command | None = None
        self._why: str | None = None
        self._watch: Watch | None = None
        try:
            for number, hop in enumerate(hops):
                self._add(hop, direct=number == 0 and hop.proxy_command is None)
        except BaseException:
            self.close()
            raise
        self._watch = Watch(self)
        self._watch.start()

    @property
    def transport(self) -> Transport:
        """The one to the machine itself."""
        return self._transports[-1]

    def alive(self) -> bool:
        return self._why is None and all(t.is_active() for t in self._transports)

    def ask(self) -> Question:
        """Ask the machine for a sign of life; does not wait."""
        question = Question(self.transport)
        question.start()
        return question

    def signs(self) -> tuple[int, int]:
        """Changes whenever there is a sign of life: the machine said something, or what was sent
        gets on, which is all that a slow way shows while it is full."""
        return self.transport.heard.count, self._transports[0].heard.arrived()

    def gone_within(self, seconds: float) -> bool:
        """Is it gone, or found to be soon? paramiko closes channels a moment before it knows."""
        until = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def lost(self, reason: str | None = None) -> LinkLost:
        """What to raise when something failed because the connection is gone."""
        said = [t.farewell for t in self._transports if t.farewell]
        reason = self._why or (said[0] if said else reason) or "the other side ended it"
        return LinkLost(f"lost the connection to {self.hop.address}: {reason}")

    def give_up(self, reason: str) -> None:
        """End it at once, without a word to the other side; whoever waits for it goes on."""
        if self._why is None:
            self._why = reason
        # from here outwards: the ends of the inner ones would be sent over the outer
        for transport in self._transports:
            with contextlib.suppress(Exception):
                transport.close()
            transport.heard.close()  # of one that was never started
        if self._command is not None:
            self._command.close()

    def close(self) -> None:
        """Let go of it; never raises and waits for nobody."""
        if self._watch is not None:
            self._watch.end()
        self.give_up("it was closed")

    @contextlib.contextmanager
    def noticing(self) -> Iterator[None]:
        """Failures of what is done with the connection, as LinkLost."""
        if not self.alive():
            raise self.lost()
        try:
            yield
        except (paramiko.SSHException, EOFError, OSError) as e:
            raise self.lost(_reason(e)) from e

    def _add(self, hop: Hop, *, direct: bool) -> None:
        try:
            transport = Transport(Heard(self._stream(hop)), hop)
            self._transports.append(transport)
            server = Server(hop.host, hop.port, hop.alias, direct)
            known = read_known(hop.known_files)
            options = transport.get_security_options()
            wanted = [
                name
                for kind in known_types(known, server)
                for name in KEY_ALGORITHMS.get(kind, (kind,))
                if name in options.key_types
            ]
            options.key_types = (*wanted, *(t for t in options.key_types if t not in wanted))
            transport.start_client(timeout=hop.connect_timeout_s)
            if not transport.initial_kex_done:
                raise TimeoutError
            key = transport.get_remote_server_key()
            check_key(known, hop.known_files, server, key.get_name(), key.asbytes())
            log_in(transport, hop)
        except DeviceError:
            raise
        except IncompatiblePeer as e:
            raise DeviceError(f"{hop.address}: {_reason(e)}; its sshd is too old or too new") from e
        except (paramiko.SSHException, EOFError, OSError) as e:
            raise LinkLost(f"cannot connect to {hop.address}: {_reason(e)}{self._said()}") from e

    def _said(self) -> str:
        said = self._command.said() if self._command is not None else ""
        return f" ({said})" if said else ""

    def _stream(self, hop: Hop) -> Stream:
        if self._transports:
            try:
                return self._transports[-1].open_channel(
                    "direct-tcpip",
                    (hop.host, hop.port),
                    ("127.0.0.1", 0),
                    timeout=hop.connect_timeout_s,
                )
            except paramiko.ChannelException as e:
                raise LinkLost(f"cannot connect to {hop.address} over the jump host: {e}") from e
        if hop.proxy_command is not None:
            self._command = Command(hop.proxy_command)
            return self._command.socket
        return connect(hop)


def _reason(error: BaseException) -> str:
    """An exception in a few words of one line."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if isinstance(error, EOFError):
        return "the other side ended it"
    text = " ".join(str(error).split())
    if "protocol banner" in text:
        return "what answers there is no SSH server, or it does not answer in time"
    return text or type(error).__name__
