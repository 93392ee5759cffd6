"""Which service a host asked for, and the small ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .connection import Connection
from .faults import Behaviour
from .shell import parse_request, run_exec, run_shell
from .streams import Stream
from .sync import SyncSession

_USER_BUILD = {
    "root:": "adbd cannot run as root in production builds\n",
    "unroot:": "adbd not running as root\n",
    "remount:": "remount is not possible on a user build\n",
    "disable-verity:": "verity cannot be disabled on a user build\n",
    "enable-verity:": "verity cannot be enabled on a user build\n",
}


class Services:
    """`note` is told every service asked for; `reboot`, what the host wants to reboot to."""

    def __init__(
        self,
        behaviour: Behaviour,
        note: Callable[[str], None],
        reboot: Callable[[str], None],
    ) -> None:
        self._behaviour = behaviour
        self._note = note
        self._reboot = reboot

    def find(self, name: str, connection: Connection) -> Callable[[Stream], None] | None:
        self._note(name)
        kind, _, rest = name.partition(":")
        serve: Callable[[Stream], None] | None = None
        if kind.split(",")[0] == "shell":
            request = parse_request(name)
            if not request.version_2 or "shell_v2" in self._behaviour.settings.features:
                serve = partial(run_shell, request=request)
        elif kind == "exec":
            serve = partial(run_exec, command=rest)
        elif name == "sync:":
            serve = partial(self._sync, connection=connection)
        elif kind == "reboot":
            serve = partial(self._restart, target=rest)
        elif name in _USER_BUILD:
            serve = partial(_say, text=_USER_BUILD[name])
        return serve

    def _sync(self, stream: Stream, connection: Connection) -> None:
        SyncSession(stream, self._behaviour, connection).run()

    def _restart(self, stream: Stream, target: str) -> None:
        stream.close()
        self._reboot(target)


def _say(stream: Stream, text: str) -> None:
    stream.write(text.encode())
