"""Host keys that are known: files as OpenSSH's `known_hosts`, and what becomes of a key that a
server offers. Reads those files; touches nothing else.

paramiko's own reader takes a marker (`@revoked`) for a host's name and knows no patterns, so it
would accept a key that its owner has revoked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import DeviceError, UsageError

SSH_PORT = 22
# as servers name their keys, the ones we would rather have first, and as ssh-keyscan names them
KEYSCAN_NAMES = {
    "ssh-ed25519": "ed25519",
    "ecdsa-sha2-nistp256": "ecdsa",
    "ecdsa-sha2-nistp384": "ecdsa",
    "ecdsa-sha2-nistp521": "ecdsa",
    "ssh-rsa": "rsa",
}


class HostKeyRefused(DeviceError):  # noqa: N818 - the message is the error
    """The server is not known to be who it should be; nothing was sent to it."""


@dataclass(frozen=True)
class Entry:
    """One line of a known_hosts file."""

    file: Path
    line: int
    marker: str  # "", "@revoked" or "@cert-authority"
    hosts: str
    type: str
    key: bytes


@dataclass(frozen=True)
class Server:
    """How a server is looked up, and how its key can be had by other means."""

    host: str
    port: int
    alias: str | None  # the name to look up in place of host and port
    reached_directly: bool  # not over a jump host or a command

    @property
    def name(self) -> str:
        """What its lines in known_hosts are called."""
        if self.alias is not None:
            return self.alias.lower()
        host = self.host.lower()
        return host if self.port == SSH_PORT else f"[{host}]:{self.port}"


def fingerprint(key: bytes) -> str:
    """A key as OpenSSH tells it to people."""
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode("ascii")
    return f"SHA256:{digest.rstrip('=')}"


def read_known(files: Iterable[Path]) -> list[Entry]:
    """The entries of all files that exist; lines that are no entries are passed over, as by ssh.

    Raises UsageError for a file that cannot be read.
    """
    entries = []
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            continue
        except OSError as e:
            raise UsageError(f"cannot read the known host keys in {file}: {e.strerror}") from e
        for number, line in enumerate(lines, 1):
            entry = _entry(file, number, line)
            if entry is not None:
                entries.append(entry)
    return entries


def _entry(file: Path, number: int, line: str) -> Entry | None:
    fields = line.split()
    if not fields or fields[0].startswith("#"):
        return None
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if len(fields) < 3:
        return None
    try:
        key = base64.b64decode(fields[2], validate=True)
    except ValueError:
        return None
    return Entry(file, number, marker, fields[0], fields[1], key)


def is_for(entry: Entry, name: str) -> bool:
    """Does the entry speak of the host with this name?"""
    if entry.hosts.startswith("|"):
        return _hash_matches(entry.hosts, name)
    matched = False
    for pattern in entry.hosts.lower().split(","):
        negated = pattern.startswith("!")
        if _pattern(pattern[negated:]).fullmatch(name):
            if negated:
                return False
            matched = True
    return matched


def _hash_matches(hashed: str, name: str) -> bool:
    fields = hashed.split("|")
    if len(fields) != 4 or fields[1] != "1":
        return False
    try:
        salt, digest = (base64.b64decode(field, validate=True) for field in fields[2:])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


def _pattern(text: str) -> re.Pattern[str]:
    """`*` and `?` only: a bracket is part of a name with a port."""
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _of(entries: Sequence[Entry], server: Server) -> list[Entry]:
    """Entries of a server. A key known without a port holds for every port, as for ssh."""
    found = [entry for entry in entries if is_for(entry, server.name)]
    if not any(not entry.marker for entry in found) and server.alias is None:
        plain = server.host.lower()
        found += [entry for entry in entries if entry not in found and is_for(entry, plain)]
    return found


def known_types(entries: Sequence[Entry], server: Server) -> list[str]:
    """Types of the keys that are known of a server, the best first.

    To be asked for first: a host that is known by one key must not be refused for offering another.
    """
    types = {entry.type for entry in _of(entries, server) if not entry.marker}
    return [name for name in KEYSCAN_NAMES if name in types]


def check_key(
    entries: Sequence[Entry], files: Sequence[Path], server: Server, kind: str, key: bytes
) -> None:
    """Raises HostKeyRefused unless the key that the server offers is known to be its own."""
    own = _of(entries, server)
    offered = f"{KEYSCAN_NAMES.get(kind, kind)} host key {fingerprint(key)}"
    for entry in own:
        if entry.marker == "@revoked" and entry.key == key:
            raise HostKeyRefused(
                f"{server.name}: its {offered} is revoked ({entry.file}, line {entry.line}); "
                "this may be somebody else's machine"
            )
    plain = [entry for entry in own if not entry.marker]
    if any(entry.key == key for entry in plain):
        return
    for entry in plain:
        if entry.type == kind and is_for(entry, server.name):
            raise HostKeyRefused(_changed(entry, server, key))
    raise HostKeyRefused(_unknown(own, files, server, kind, key))


def _changed(entry: Entry, server: Server, key: bytes) -> str:
    remove = f"ssh-keygen -f {shlex.quote(str(entry.file))} -R {shlex.quote(server.name)}"
    return (
        f"{server.name}: its {KEYSCAN_NAMES.get(entry.type, entry.type)} host key has changed: "
        f"{entry.file}, line {entry.line}, has {fingerprint(entry.key)}, the server offers "
        f"{fingerprint(key)}; somebody may be in between. If the host was set up anew, remove the "
        f"old key; the next run then prints the command that adds the new one. To remove: {remove}"
    )


def _unknown(
    own: Sequence[Entry], files: Sequence[Path], server: Server, kind: str, key: bytes
) -> str:
    scan = KEYSCAN_NAMES.get(kind, kind)
    others = sorted({KEYSCAN_NAMES.get(e.type, e.type) for e in own if not e.marker})
    notes = f" (it is known by another key: {', '.join(others)})" if others else ""
    if any(entry.marker == "@cert-authority" for entry in own):
        notes += " (a @cert-authority is known for it, but host certificates are not supported)"
    if not files:
        return (
            f"{server.name}: its {scan} host key {fingerprint(key)} is not known, and no file of "
            "known keys is named: give target.known_hosts=FILE"
        )
    return (
        f"{server.name}: its {scan} host key {fingerprint(key)} is not in "
        f"{' or '.join(str(file) for file in files)}{notes}; compare it with the host's own "
        f"(there: ssh-keygen -lf /etc/ssh/ssh_host_{scan}_key.pub), then add it: "
        f"{_adding(files[0], server, kind, key)}"
    )


def _adding(file: Path, server: Server, kind: str, key: bytes) -> str:
    target = shlex.quote(str(file))
    first = "" if file.parent.is_dir() else f"mkdir -p {shlex.quote(str(file.parent))} && "
    if server.reached_directly and server.alias is None:
        scan = KEYSCAN_NAMES.get(kind, kind)
        host = shlex.quote(server.host)
        return f"{first}ssh-keyscan -p {server.port} -t {scan} {host} >> {target}"
    # ssh-keyscan knows no jump hosts and no aliases
    line = f"{server.name} {kind} {base64.b64encode(key).decode('ascii')}"
    return f"{first}echo {shlex.quote(line)} >> {target}"
