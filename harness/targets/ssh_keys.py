"""Logging in: the agent's keys, key files, and what to say when none is accepted. Reads key files
and talks to the agent; no key or passphrase leaves this module, nor is any asked for.
"""

from __future__ import annotations

import base64
import os
import shlex
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import paramiko

from harness.errors import DeviceError
from harness.targets.ssh_hosts import Hop

AGENT_TIMEOUT_S = 60.0  # an agent may ask its user to confirm


class LoginRefused(DeviceError):  # noqa: N818 - the message is the error
    """The server lets none of our keys in."""


class _Agent(paramiko.agent.AgentSSH):
    """The agent behind a socket. paramiko's own knows only SSH_AUTH_SOCK and waits for ever."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(AGENT_TIMEOUT_S)
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


@dataclass
class _Tried:
    """What was tried and what could not be, for the message at the end."""

    keys: list[str]
    notes: list[str]


class _Transport(Protocol):
    """What is needed of a connection; `farewell`: what the server said when it ended it."""

    farewell: str

    def auth_none(self, username: str) -> list[str]: ...
    def auth_publickey(self, username: str, key: paramiko.PKey) -> list[str]: ...
    def is_active(self) -> bool: ...


def log_in(transport: _Transport, hop: Hop) -> None:
    """Authenticate. Raises LoginRefused; SSHException, EOFError or TimeoutError when the connection
    ends meanwhile."""
    who = _who(hop)
    try:
        transport.auth_none(hop.user)
        return  # as some do that know us by other means
    except paramiko.BadAuthenticationType as e:
        allowed = list(e.allowed_types)
    except paramiko.AuthenticationException as e:
        raise _interrupted(transport, e) or e from e
    if "publickey" not in allowed:
        raise LoginRefused(
            f"{who}: the server accepts no keys, only {', '.join(allowed)}; allow public keys there"
        )
    tried = _Tried([], [])
    agent = _agent(hop, tried)
    try:
        for label, key in _candidates(hop, agent, tried):
            tried.keys.append(label)
            if _accepted(transport, hop, key, tried):
                return
    finally:
        if agent is not None:
            agent.close()
    raise LoginRefused(_refusal(who, hop, tried))


def _interrupted(transport: _Transport, error: Exception) -> Exception | None:
    """What happened if it was no refusal; paramiko calls anything that goes wrong now a refusal."""
    if not transport.is_active():
        return EOFError()
    return TimeoutError() if "timeout" in str(error).lower() else None


def _accepted(transport: _Transport, hop: Hop, key: paramiko.PKey, tried: _Tried) -> bool:
    who = _who(hop)
    try:
        more = transport.auth_publickey(hop.user, key)
    except paramiko.BadAuthenticationType as e:
        raise LoginRefused(
            f"{who}: the server now only accepts {', '.join(e.allowed_types)}, after "
            + ", ".join(tried.keys)
        ) from e
    except (paramiko.SSHException, EOFError) as e:
        if "too many" in transport.farewell.lower():
            raise LoginRefused(
                f"{who}: the server ended the connection after {_listed(tried.keys)}; these are "
                f"too many keys: {_fewer_keys(hop)}"
            ) from e
        if (interrupted := _interrupted(transport, e)) is not None:
            raise interrupted from e
        if not isinstance(e, paramiko.AuthenticationException):
            tried.notes.append(f"{tried.keys[-1]}: {e}")
        return False
    if more:
        raise LoginRefused(
            f"{who}: the key is accepted, but the server wants {' or '.join(more)} as well, "
            "which is not supported"
        )
    return True


def _candidates(
    hop: Hop, agent: _Agent | None, tried: _Tried
) -> Iterator[tuple[str, paramiko.PKey]]:
    """Keys in the order of ssh: the agent's that were named, named files, the agent's others."""
    held: dict[bytes, paramiko.PKey] = {}
    if agent is not None:
        held = {key.asbytes(): key for key in agent.get_keys()}
    done: set[bytes] = set()
    late: list[Path] = []
    for path in hop.key_files:
        public = _public_part(path)
        if public in held:
            done.add(public)
            yield f"{path} (by the agent)", held[public]
        else:
            late.append(path)
    for path in late:
        if (key := _load(path, tried, needed=True)) is not None:
            done.add(key.asbytes())
            yield str(path), key
    if not hop.only_named_keys:
        for public, key in held.items():
            if public not in done:
                done.add(public)
                yield f"the agent's {key.get_name()} {_comment(key)}".rstrip(), key
    for path in hop.default_keys:
        if _public_part(path) not in done and (key := _load(path, tried, needed=False)) is not None:
            yield str(path), key


def _comment(key: paramiko.PKey) -> str:
    comment = getattr(key, "comment", "")
    return f"({comment})" if comment else ""


def _agent(hop: Hop, tried: _Tried) -> _Agent | None:
    path = hop.agent if hop.agent is not None else os.environ.get("SSH_AUTH_SOCK")
    if not path:
        return None
    try:
        return _Agent(path)
    except (OSError, paramiko.SSHException) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        tried.notes.append(f"the agent at {path} does not answer ({reason})")
        return None


def _load(path: Path, tried: _Tried, *, needed: bool) -> paramiko.PKey | None:
    if not path.exists():
        if needed:
            tried.notes.append(f"{path} is not there")
        return None
    try:
        return paramiko.PKey.from_path(path)
    except OSError as e:
        tried.notes.append(f"{path} cannot be read ({e.strerror})")
    except Exception as e:  # cryptography's and paramiko's own, by version
        if _has_passphrase(path, e):
            add = f"ssh-add {shlex.quote(str(path))}"
            tried.notes.append(f"{path} has a passphrase: add it to the agent: {add}")
        else:
            tried.notes.append(
                f"{path} is no private key of OpenSSH (or PEM) that can be used here"
            )
    return None


def _has_passphrase(path: Path, error: Exception) -> bool:
    return isinstance(error, paramiko.PasswordRequiredException) or (
        isinstance(error, TypeError | ValueError)
        and ("password" in str(error).lower() or b"ENCRYPTED" in path.read_bytes()[:200])
    )


def _public_part(path: Path) -> bytes:
    """Public key of a private key file, without its passphrase; empty where it is not told."""
    try:
        return base64.b64decode(Path(f"{path}.pub").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        pass
    try:
        # openssh-key-v1: magic, cipher, kdf, its options, number of keys, public key, ...
        lines = path.read_text().split("-----")[2]
        data = base64.b64decode("".join(lines.split()))
        rest = data.removeprefix(b"openssh-key-v1\0")
        if rest == data:
            return b""
        for _ in range(3):
            rest = rest[4 + int.from_bytes(rest[:4], "big") :]
        rest = rest[4:]
        return rest[4 : 4 + int.from_bytes(rest[:4], "big")]
    except (OSError, ValueError, IndexError):
        return b""


def _listed(keys: list[str]) -> str:
    return ", ".join(keys) if keys else "nothing: there is no key to try"


def _who(hop: Hop) -> str:
    who = f"{hop.user}@{hop.address}"
    if not hop.is_jump:
        return who
    return f"the jump host {who}" if hop.name == hop.host else f"the jump host {hop.name} ({who})"


def _fewer_keys(hop: Hop) -> str:
    if not hop.is_jump:
        return "give target.key_file, or IdentityFile with IdentitiesOnly yes"
    if hop.config_file is None:
        return "keep fewer in the agent (target.key_file is not used for jump hosts)"
    return (
        f"give IdentityFile with IdentitiesOnly yes for Host {hop.name} in {hop.config_file} "
        "(target.key_file is not used for jump hosts)"
    )


def _refusal(who: str, hop: Hop, tried: _Tried) -> str:
    notes = f"; {'; '.join(tried.notes)}" if tried.notes else ""
    advice = ""
    if hop.is_jump:
        # also beside notes: who gave target.key_file looks for the mistake in that
        named = f"an IdentityFile for Host {hop.name} in {hop.config_file}, or "
        advice = (
            "; put the public key into its ~/.ssh/authorized_keys, and give the key by "
            f"{'' if hop.config_file is None else named}the agent: ssh-add FILE "
            "(target.key_file is not used for jump hosts)"
        )
    elif not tried.notes:
        advice = "; put the public key into its ~/.ssh/authorized_keys, or give target.key_file"
    return f"{who}: cannot log in; tried {_listed(tried.keys)}{notes}{advice}"
