"""Files to a device and back: whole, checked by SHA-256, by the link and the launcher there.

Something appears under its final name only once it is whole: it is sent to `NAME.part` first.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from pathlib import Path, PurePosixPath
from typing import Any

from harness.errors import DeviceError
from harness.targets.remote_shell import RemoteShell

PART = ".part"
# says of an installed file that it was checked, and as what: size, time, inode, SHA-256
CHECKED = ".checked"
# hashing a model of a hundred gigabytes on a slow device
HASH_S = 3600.0
SHORT_S = 60.0
# standard input into a directory, a part, a file, if so many bytes come
RECEIVE = """
take() {
    mkdir -p -- "$1" && cat > "$2" || return
    test "$(wc -c < "$2")" -eq "$4" || { echo "not all of it arrived" >&2; return 1; }
    mv -f -- "$2" "$3"
}
take "$@" || { rm -f -- "$2"; exit 1; }
"""
# up to this size a file is fetched together with others
SMALL_BYTES = 64 * 1024
# up to this size a file that is there is hashed for every campaign: storage that fails keeps times
REHASHED_BYTES = 64 * 2**20
# a part of this directory's name is enough to tell contents apart
NAMED_BY = 16
_MAKE_ROOM = "make room there, or choose another directory with target.dir=DIR"


class RemoteFiles:
    """The files of one device."""

    def __init__(self, shell: RemoteShell) -> None:
        """Looks at nothing yet."""
        self._shell = shell
        self._installed: dict[PurePosixPath, tuple[Any, ...]] = {}

    def place(self, file: Path, beside: str) -> PurePosixPath:
        """Where a file is installed with those that have the hash `beside`, or by its own."""
        return self._shell.home / "files" / beside[:NAMED_BY] / file.name

    def install(
        self, file: Path, sha256: str, beside: str, executable: bool = False
    ) -> PurePosixPath:
        """Put it in its place, unless it is there: unchanged since it was last checked, or whole.

        Raises DeviceError when it does not arrive as it was sent.
        """
        place = self.place(file, beside)
        large = file.stat().st_size > REHASHED_BYTES
        known = large and self._is_checked(place, sha256)
        if not known and not self._matches(place, sha256):
            self._send_whole(file, sha256, place, executable)
        self.note(place)
        if large and not known:
            text = _mark_of(self._installed[place], sha256)
            self.send_bytes(text.encode(), PurePosixPath(f"{place}{CHECKED}"))
        return place

    def _send_whole(self, file: Path, sha256: str, place: PurePosixPath, executable: bool) -> None:
        self._require_space(file, place)
        part = PurePosixPath(f"{place}{PART}")
        for _attempt in range(2):
            self._send_part(file, part)
            if self._matches(part, sha256):
                break
            # what had been there of it was not the beginning of this file
            self._do("rm", "-f", "--", str(part))
        else:
            raise DeviceError(
                f"{self._shell.name}: {file} does not arrive there as it was sent "
                f"(its SHA-256 differs twice); is it being written, or the storage there failing?"
            )
        self._into_place(part, place, executable)

    def note(self, place: PurePosixPath) -> None:
        """Remember an installed file as it is now, whose content was checked."""
        self._installed[place] = self._identities(place)[0]

    def changed(self) -> list[PurePosixPath]:
        """The installed files that are not as they were noted: another size, time or inode."""
        now = self._identities(*self._installed)
        return [
            p for p, found in zip(self._installed, now, strict=True) if found != self._installed[p]
        ]

    def _identities(self, *places: PurePosixPath) -> list[tuple[Any, ...]]:
        found = {f["path"]: f for f in self._look(*places, sha256=False)}
        keys = ("bytes", "mtime_ns", "inode")
        return [tuple(found.get(str(p), {}).get(key) for key in keys) for p in places]

    def send(self, file: Path, place: PurePosixPath, executable: bool = False) -> None:
        """Copy a small file; what is there of that name is replaced."""
        part = PurePosixPath(f"{place}{PART}")
        self._do("rm", "-f", "--", str(part))
        self._send_part(file, part)
        self._into_place(part, place, executable)

    def send_bytes(self, content: bytes, place: PurePosixPath) -> None:
        """As `send`, of a few bytes, whose directory is made."""
        # a name of its own: what a break has left over there may still be writing
        part = PurePosixPath(f"{place}.{secrets.token_hex(4)}{PART}")
        argv = ["sh", "-c", RECEIVE, "sh", str(place.parent), str(part), str(place)]
        done = self._shell.call([*argv, str(len(content))], timeout_s=SHORT_S, stdin=content)
        if done.code != 0:
            raise DeviceError(f"{self._shell.name}: {place}: {done.last_words}")

    def fetch_all(self, source_dir: PurePosixPath, destination_dir: Path) -> None:
        """Copy the files of a directory; those that are here already, whole, are not sent again."""
        missing: dict[str, tuple[int, str]] = {}
        for found in self._look(source_dir):
            name = str(found["path"]).rpartition("/")[2]
            if name in ("", ".", ".."):
                raise DeviceError(f"{self._shell.name}: a file is called {name!r} there")
            here = destination_dir / name
            if not here.is_file() or _sha256(here) != found["sha256"]:
                missing[name] = int(found["bytes"]), str(found["sha256"])
        self._fetch_small(source_dir, destination_dir, missing)
        for name, (_, sha256) in sorted(missing.items()):
            self._fetch(source_dir / name, destination_dir / name, sha256)

    def _fetch_small(
        self, source_dir: PurePosixPath, here: Path, missing: dict[str, tuple[int, str]]
    ) -> None:
        """Most of the files of a cell, in one go, as each by itself costs a journey; what came as
        it should is not missing any more."""
        names = sorted(name for name, (size, _) in missing.items() if size <= SMALL_BYTES)
        if not names:
            return
        argv = ["cat", "--", *(str(source_dir / name) for name in names)]
        content = self._shell.call(argv, timeout_s=SHORT_S).stdout
        for name in names:
            size, sha256 = missing[name]
            own, content = content[:size], content[size:]
            if hashlib.sha256(own).hexdigest() == sha256:
                part = here / f".{name}{PART}"
                try:
                    part.write_bytes(own)
                    part.replace(here / name)
                except OSError as e:
                    raise DeviceError(f"{e.filename or part}: {e.strerror or e}") from e
                finally:
                    with contextlib.suppress(OSError):
                        part.unlink(missing_ok=True)
                del missing[name]

    def _fetch(self, source: PurePosixPath, destination: Path, sha256: str) -> None:
        part = destination.with_name(f".{destination.name}{PART}")
        try:
            for _attempt in range(3):
                self._shell.fetch(str(source), part)
                if _sha256(part) == sha256:
                    part.replace(destination)
                    return
        except OSError as e:
            raise DeviceError(f"{e.filename or destination}: {e.strerror or e}") from e
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        raise DeviceError(f"{self._shell.name}: {source} does not arrive here as it is there")

    def digests(self, *paths: PurePosixPath) -> dict[str, str]:
        """Names and SHA-256 of files; a directory stands for the files in it."""
        return {str(f["path"]).rpartition("/")[2]: str(f["sha256"]) for f in self._look(*paths)}

    def _look(self, *paths: PurePosixPath, sha256: bool = True) -> list[dict[str, Any]]:
        args = ["digest", *([] if sha256 else ["--no-sha256"]), *map(str, paths)]
        files = self._shell.verb(*args, timeout_s=HASH_S if sha256 else SHORT_S).get("files")
        return files if isinstance(files, list) else []

    # --- installing ---

    def _matches(self, place: PurePosixPath, sha256: str) -> bool:
        return self._shell.exists(place) and self.digests(place).get(place.name) == sha256

    def _is_checked(self, place: PurePosixPath, sha256: str) -> bool:
        """Was it found whole once, and has nothing touched it since?"""
        done = self._shell.call(["cat", "--", f"{place}{CHECKED}"], timeout_s=SHORT_S)
        mark = _mark_of(self._identities(place)[0], sha256)
        return done.code == 0 and done.stdout.decode(errors="replace") == mark

    def _require_space(self, file: Path, place: PurePosixPath) -> None:
        self._do("mkdir", "-p", "--", str(place.parent))
        part = PurePosixPath(f"{place}{PART}")
        there = self._look(part, sha256=False) if self._shell.exists(part) else []
        needed = file.stat().st_size - (int(there[0]["bytes"]) if there else 0)
        free = self._shell.free_bytes(place.parent)
        if needed > free:
            raise DeviceError(
                f"{self._shell.name}: {file.name} needs {needed / 2**20:.0f} MiB in "
                f"{place.parent}, {free / 2**20:.0f} MiB are free; {_MAKE_ROOM}"
            )

    def _send_part(self, file: Path, part: PurePosixPath) -> None:
        self._do("mkdir", "-p", "--", str(part.parent))
        try:
            self._shell.transfer(file, str(part))
        except OSError as e:
            raise DeviceError(f"{e.filename or file}: {e.strerror or e}") from e
        except DeviceError as e:
            if os.strerror(errno.ENOSPC).lower() not in str(e).lower():
                raise
            with contextlib.suppress(DeviceError):  # nor is it left full
                self._do("rm", "-f", "--", str(part))
            raise DeviceError(f"{self._shell.name}: {e}; {_MAKE_ROOM}") from e

    def _into_place(self, part: PurePosixPath, place: PurePosixPath, executable: bool) -> None:
        if executable:
            self._do("chmod", "755", "--", str(part))
        self._do("mv", "-f", "--", str(part), str(place))

    def _do(self, *argv: str) -> None:
        done = self._shell.call(argv, timeout_s=SHORT_S)
        if done.code != 0:
            raise DeviceError(f"{self._shell.name}: {argv[0]} {argv[-1]}: {done.last_words}")


def _mark_of(identity: tuple[Any, ...], sha256: str) -> str:
    return " ".join(map(str, (*identity, sha256))) + "\n"


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
