"""What is asked of a device: short programs, the launcher's verbs, copies. Over breaks in the link.

Whatever is asked may be asked again, and is, once a link that broke is made again (`steady`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar

from harness.errors import DeviceError
from harness.targets.link import Finished, Link
from harness.targets.steady import Steady

T = TypeVar("T")

# what tells this device from others, and where a relative path counts from
KEY_AND_HOME = """
cat /etc/machine-id 2>/dev/null
for name in ro.serialno ro.boot.serialno; do getprop "$name" 2>/dev/null; done
printf '\\0%s' "$PWD"
"""
CALL_S = 60.0


class RemoteShell:
    """One device's. Used by one thread.

    `home`: the directory there that is ours. `key`: what tells the device from others, as a hash.
    `on_transfer`: for a screen. `launcher`: where it is; None: it has not been put there yet.
    """

    def __init__(self, link: Link, name: str, directory: str, steady: Steady) -> None:
        """Asks the device who it is. `directory`: of ours, absolute or below the home directory."""
        self.name = name
        self.on_transfer: Callable[[str, int, int], None] = lambda _name, _done, _total: None
        self.launcher: PurePosixPath | None = None
        self._link = link
        self._steady = steady
        asked = self.call(["sh", "-c", KEY_AND_HOME])
        key, _, home = asked.stdout.rpartition(b"\0")
        if asked.code != 0 or not home:
            raise DeviceError(f"{name}: does not say where it is: {asked.last_words}")
        self.key = _hash_of(key)
        self.home = PurePosixPath(os.fsdecode(home)) / directory

    def steadily(self, action: Callable[[], T]) -> T:
        """Do something on the link that may be done again; over every break, up to a limit."""
        return self._steady.do(action)

    def check_key(self) -> None:
        """An address, or a cable, may lead to another device than before."""
        asked = self.once(["sh", "-c", KEY_AND_HOME])
        if _hash_of(asked.stdout.rpartition(b"\0")[0]) != self.key:
            raise self._steady.give_up(
                DeviceError(
                    f"{self.name}: another device answers in its place; what was measured is kept"
                )
            )

    # --- programs ---

    def call(
        self, argv: Sequence[str], *, timeout_s: float = CALL_S, stdin: bytes = b""
    ) -> Finished:
        """Run a short program to its end; after a break in the link it is run again."""
        return self.steadily(lambda: self.once(argv, timeout_s=timeout_s, stdin=stdin))

    def once(
        self, argv: Sequence[str], *, timeout_s: float = CALL_S, stdin: bytes = b""
    ) -> Finished:
        """The same within `steadily`, or where a break is the end of it. Raises LinkLost."""
        return self._link.call(argv, timeout_s=timeout_s, stdin=stdin)

    def verb(self, *args: str, timeout_s: float = CALL_S, retry: bool = True) -> dict[str, Any]:
        """What the launcher answers to a verb (docs/launcher.md). Raises DeviceError."""
        argv = [str(self.installed_launcher()), *args]
        return self.answer(args[0], (self.call if retry else self.once)(argv, timeout_s=timeout_s))

    def answer(self, name: str, done: Finished, also: tuple[int, ...] = ()) -> dict[str, Any]:
        """What a launcher that ended said to the verb `name`; `also`: exit codes beside 0."""
        if done.code != 0 and done.code not in also:
            raise DeviceError(f"{self.name}: {name}: {done.last_words}")
        try:
            answer = json.loads(done.stdout)
            if not isinstance(answer, dict):
                raise ValueError("not an object")
        except ValueError:
            raise DeviceError(
                f"{self.name}: the launcher there answered {done.stdout[:80]!r} to {name}"
            ) from None
        return answer

    def installed_launcher(self) -> PurePosixPath:
        """Raises DeviceError before there is one."""
        if self.launcher is None:
            raise DeviceError(f"{self.name}: the launcher has not been put there yet")
        return self.launcher

    def is_locked(self, lock: PurePath) -> bool:
        """Does a program started with this lock still live?"""
        return bool(self.verb("locked", str(lock))["locked"])

    def end_holders(self, lock: PurePath) -> None:
        """Ask the programs that keep a lock to end (SIGTERM)."""
        self.verb("end", str(lock))

    # --- files ---

    def transfer(self, source: Path, destination: str) -> None:
        """Copy a file there; a break is gone on from, where the link can."""
        farthest = 0

        def tell(done: int, total: int) -> None:
            nonlocal farthest
            if done > farthest > 0:
                self._steady.gets_on()
            farthest = max(done, farthest)
            self.on_transfer(source.name, done, total)

        self.steadily(lambda: self._link.put(source, destination, tell))

    def fetch(self, source: str, destination: Path) -> None:
        """Copy a file from there."""
        self.steadily(lambda: self._link.get(source, destination))

    def exists(self, path: PurePath) -> bool:
        """Is there something of that name?"""
        return self.call(["test", "-e", str(path)]).code == 0

    def make_dir(self, directory: PurePath) -> None:
        """With its parents, where it is not there."""
        done = self.call(["mkdir", "-p", "--", str(directory)])
        if done.code != 0:
            raise DeviceError(f"{self.name}: {directory} cannot be made: {done.last_words}")

    def remove(self, directory: PurePath) -> None:
        """With all that is in it."""
        done = self.call(["rm", "-rf", "--", str(directory)])
        if done.code != 0:
            raise DeviceError(f"{self.name}: {directory} is not removed: {done.last_words}")

    def free_bytes(self, directory: PurePath) -> int:
        """Space left for files below a directory that exists."""
        done = self.call(["stat", "-f", "-c", "%a %S", "--", str(directory)])
        try:
            blocks, size = map(int, done.stdout.split())
        except ValueError:
            raise DeviceError(
                f"{self.name}: the space left in {directory} is not known: {done.last_words}"
            ) from None
        return blocks * size


def _hash_of(key: bytes) -> str | None:
    """Without the number itself, which is nobody's business."""
    key = key.strip()
    return hashlib.sha256(key).hexdigest()[:16] if key else None
