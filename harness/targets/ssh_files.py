"""Files to and from a machine over a connection. Touches the connection and files here.

To there by SFTP, which can go on where an earlier transfer was cut; where the server has none, and
from there always, through `cat`: its output needs no request for each piece, so that distance costs
nothing, and its errors say what is wrong, which those of SFTP do not.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import paramiko

from harness.errors import DeviceError
from harness.targets.link import Finished, LinkLost, OnBytes
from harness.targets.ssh_exec import VERDICT_S, Program, quoted, run_to_end, stream
from harness.targets.ssh_wire import Connection

# of one SFTP request, with its head: the most that OpenSSH takes; others promise 32 KiB
REQUEST_BYTES = 255 * 1024
PIECE = REQUEST_BYTES
SHORT_S = 60.0
# says with what it fails to open the file, or to write something beside it
WHY_NOT_WRITTEN = (
    ': >> "$1" || exit 1; '
    'said=$(dd if=/dev/zero "of=$1.probe" bs=65536 count=16 2>&1) || echo "$said" >&2; '
    'rm -f "$1.probe"'
)
SIZE_OF = 'test ! -d "$1" || exit 1; if test -e "$1"; then wc -c < "$1"; else echo 0; fi'
EMPTY = ': > "$1"'
APPEND = 'exec cat >> "$1"'
WITH_SIZE = 'size=$(wc -c < "$1") && echo $size && exec cat < "$1"'


def put_file(
    connection: Connection, source: Path, destination: str, on_bytes: OnBytes | None
) -> None:
    """Copy a file there, going on from what is there. Raises LinkLost and DeviceError."""
    quoted(destination)  # can it be a name at all?
    try:
        with source.open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            _Sender(connection, f, size, destination, on_bytes).send()
    except OSError as e:  # what fails over there is none
        raise DeviceError(f"cannot read {source}: {e.strerror}") from e


def get_file(connection: Connection, source: str, destination: Path) -> None:
    """Copy a file from there. Raises LinkLost and DeviceError."""
    receiver = _Receiver(destination)
    err = bytearray()
    try:
        with receiver:
            code = stream(
                connection,
                ["sh", "-c", WITH_SIZE, "sh", source],
                timeout_s=None,
                out=receiver.take,
                err=err.extend,
            )
    except OSError as e:
        raise DeviceError(f"cannot write {destination}: {e.strerror}") from e
    what = f"{connection.hop.address}:{source}"
    if code != 0:
        raise DeviceError(f"cannot read {what}: {_first_line(bytes(err)) or f'exit code {code}'}")
    if receiver.size != receiver.got:
        raise DeviceError(f"{what}: {receiver.got} bytes came of {receiver.size}")


class _Receiver:
    """What `WITH_SIZE` prints: a line with the size, then the content."""

    def __init__(self, destination: Path) -> None:
        self._destination = destination
        self._head = b""
        self.size: int | None = None
        self.got = 0

    def __enter__(self) -> None:
        self._file = self._destination.open("wb")

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, data: bytes) -> None:
        if self.size is None:
            self._head += data
            line, newline, data = self._head.partition(b"\n")
            if not newline:
                return
            self.size = int(line)
        self.got += len(data)
        try:
            self._file.write(data)
        except OSError as e:  # not the connection's
            raise DeviceError(f"cannot write {self._destination}: {e.strerror}") from e


class _Sender:
    """One file on its way to the machine."""

    def __init__(
        self,
        connection: Connection,
        file: IO[bytes],
        size: int,
        destination: str,
        on_bytes: OnBytes | None,
    ) -> None:
        self._connection = connection
        self._file = file
        self._size = size
        self._destination = destination
        self._path = os.fsencode(destination)  # as SFTP wants it; paramiko itself would say UTF-8
        self._on_bytes = on_bytes

    def send(self) -> None:
        sftp = self._sftp()
        if sftp is None:
            there = self._by_cat()
        else:
            try:
                there = self._by_sftp(sftp)
            except (paramiko.SSHException, paramiko.SFTPError, EOFError, OSError) as e:
                if self._connection.gone_within(VERDICT_S):
                    raise self._connection.lost() from e
                raise self._refused(str(e)) from e
            finally:
                with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                    sftp.close()
        if there != self._size:
            raise self._refused(f"{there} bytes are there after {self._size} were sent")

    def _tell(self, done: int) -> None:
        if self._on_bytes is not None:
            self._on_bytes(done, self._size)

    def _pieces(self, offset: int) -> Iterator[bytes]:
        """The rest of the file; its progress is told when a piece was taken."""
        self._file.seek(offset)
        self._tell(offset)
        while offset < self._size:
            try:
                piece = self._file.read(min(PIECE, self._size - offset))
            except OSError as e:
                raise DeviceError(f"cannot read {self._file.name}: {e.strerror}") from e
            if not piece:
                raise DeviceError(f"{self._file.name}: became shorter while it was copied")
            yield piece
            offset += len(piece)
            self._tell(offset)

    def _sftp(self) -> paramiko.SFTPClient | None:
        """A session; None where the server has no SFTP, or startup files talk into it."""
        connection = self._connection
        with connection.noticing():
            channel = connection.transport.open_session(timeout=connection.hop.timeout_s)
            try:
                channel.invoke_subsystem("sftp")
                return paramiko.SFTPClient(channel)
            except (paramiko.SSHException, paramiko.SFTPError, EOFError, OSError) as e:
                channel.close()
                if connection.gone_within(VERDICT_S):
                    raise connection.lost() from e
                return None

    def _by_sftp(self, sftp: paramiko.SFTPClient) -> int:
        offset = self._size_by_sftp(sftp)
        if offset > self._size:
            offset = 0
        if offset != self._size or offset == 0:
            remote = sftp.open(self._path, "r+b" if offset else "wb", bufsize=0)
            try:
                if "OpenSSH" in self._connection.transport.remote_version:
                    remote.MAX_REQUEST_SIZE = REQUEST_BYTES
                remote.set_pipelined(True)
                remote.seek(offset)
                for piece in self._pieces(offset):
                    remote.write(piece)
            except BaseException:
                # Ctrl-C may have cut a request in two: the answers that closing the file would wait
                # for do not come, and their absence would pass for a lost connection
                remote.set_pipelined(False)
                sftp.close()
                raise
            remote.close()
        else:
            self._tell(offset)
        return sftp.stat(self._path).st_size or 0

    def _size_by_sftp(self, sftp: paramiko.SFTPClient) -> int:
        try:
            there = sftp.stat(self._path)
        except FileNotFoundError:
            return 0
        if there.st_mode is not None and not stat.S_ISREG(there.st_mode):
            raise self._refused("it is no regular file")
        return there.st_size or 0

    def _by_cat(self) -> int:
        offset = self._size_by_shell()
        if offset > self._size:
            self._shell(EMPTY)
            offset = 0
        err = bytearray()
        program = Program(self._connection, ["sh", "-c", APPEND, "sh", self._destination])
        try:
            with self._connection.noticing():
                for piece in self._pieces(offset):
                    self._feed(program, memoryview(piece), err)
                program.end_of_input()
                while program.pump(len, err.extend) or not program.ended():
                    program.wait(0.1)
                code = program.code()
        finally:
            program.let_go()
        if code != 0:
            raise self._refused(_first_line(bytes(err)) or f"exit code {code}")
        return self._size_by_shell()

    def _feed(self, program: Program, left: memoryview, err: bytearray) -> None:
        while left:
            taken = program.feed(left)
            left = left[taken:]
            program.pump(len, err.extend)
            if not taken:
                if not self._connection.alive():
                    raise self._connection.lost()
                program.wait(0.01)

    def _size_by_shell(self) -> int:
        done = self._shell(SIZE_OF)
        try:
            return int(done.stdout)
        except ValueError:
            raise self._refused(_first_line(done.stderr) or "it is no regular file") from None

    def _shell(self, script: str) -> Finished:
        argv = ["sh", "-c", script, "sh", self._destination]
        return run_to_end(self._connection, argv, timeout_s=SHORT_S)

    def _refused(self, otherwise: str) -> DeviceError:
        """Why it cannot be written, as the shell over there says it: SFTP says only `Failure`."""
        reason = ""
        try:
            reason = _first_line(self._shell(WHY_NOT_WRITTEN).stderr)
        except LinkLost as e:
            return e
        except DeviceError:
            pass
        where = f"{self._connection.hop.address}:{self._destination}"
        return DeviceError(f"cannot write {where}: {reason or otherwise}")


def _first_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines()]
    return next((line for line in lines if line), "")
