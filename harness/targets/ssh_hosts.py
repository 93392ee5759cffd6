"""Which machines to log in to, in which order and how: from the configuration and an OpenSSH
configuration file. Reads that file; touches nothing else.
"""

from __future__ import annotations

import getpass
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.target_config import SshConfig
from harness.targets.ssh_config_file import read_config_text
from harness.targets.ssh_known import SSH_PORT

OPTIONAL_CONFIG = "~/.ssh/config"
KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
MOST_HOPS = 8
# what changes who we talk to or how we get there, and is not done here
REFUSED = {
    "bindinterface": None,
    "knownhostscommand": None,
    "proxyusefdpass": "no",
    "pubkeyauthentication": "yes",
}


@dataclass(frozen=True)
class Hop:
    """One machine to log in to."""

    name: str  # as the user calls it
    host: str
    port: int
    user: str
    key_files: tuple[Path, ...]  # those that were named
    default_keys: tuple[Path, ...]  # those to try where none was named
    only_named_keys: bool
    agent: str | None  # None: the one of SSH_AUTH_SOCK; "": none
    alias: str | None  # the name of its host key
    known_files: tuple[Path, ...]
    connect_timeout_s: float  # until it has said who it is
    timeout_s: float  # for each later step
    family: str  # any, inet or inet6
    bind_address: str | None
    proxy_command: str | None
    is_jump: bool  # on the way to the target; target.key_file is not for it
    config_file: str | None  # OpenSSH's, which may name its keys; None: none is read

    @property
    def address(self) -> str:
        """Host and port, for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def route(config: SshConfig) -> list[Hop]:
    """All machines from here to the target, which is the last. Raises UsageError."""
    host, user, port = _split(config.host, "target.host")
    if (config.user and user) or (config.port and port):
        raise UsageError(
            f"target.host: {config.host!r} names a user or a port, and target.user or target.port "
            "does too; give it once"
        )
    return _route(config, host, config.user or user, config.port or port, config.proxy_jump)


def _route(
    config: SshConfig,
    name: str,
    user: str | None,
    port: int | None,
    jump: str | None,
    *,
    above: tuple[str, ...] = (),
) -> list[Hop]:
    if len(above) >= MOST_HOPS:
        raise UsageError(
            f"target.host: more than {MOST_HOPS} jump hosts ({' <- '.join(above)}); "
            "do they lead in a ring?"
        )
    options = _options(config, name)
    if jump is None and not options.get("proxycommand"):
        jump = options.get("proxyjump")
    jumps = [] if jump is None or jump.lower() == "none" else jump.split(",")
    hop = _hop(config, name, user, port, options, last=not above, jumps=bool(jumps))
    before: list[Hop] = []
    for number, text in enumerate(jumps):
        jump_host, jump_user, jump_port = _split(text.strip(), "the jump host")
        # only the first is reached as the configuration file says; the others lie behind it
        own_jump = None if number == 0 else "none"
        before += _route(config, jump_host, jump_user, jump_port, own_jump, above=(*above, name))
    return [*before, hop]


def _split(text: str, what: str) -> tuple[str, str | None, int | None]:
    """Host, user, port of `[ssh://][user@]host[:port]`; an IPv6 address may stand in brackets."""
    rest = text.removeprefix("ssh://").rstrip("/") if text.startswith("ssh://") else text
    user, _, rest = rest.rpartition("@")
    port: str | None = None
    if rest.startswith("["):
        host, _, after = rest[1:].partition("]")
        port = after.removeprefix(":") or None
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    else:
        host = rest
    if not host or host.startswith("-") or any(c.isspace() for c in host):
        raise UsageError(f"{what}: found {text!r}; needs [USER@]HOST[:PORT]")
    if port is None:
        return host, user or None, None
    return host, user or None, _port(port, f"{what} {text!r}")


def _port(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) < 65536:
        raise UsageError(f"{where}: the port {text!r} is no number from 1 to 65535")
    return int(text)


def _options(config: SshConfig, name: str) -> Mapping[str, Any]:
    if config.ssh_config is None:
        return {"hostname": name}
    path = Path(config.ssh_config).expanduser()
    if not path.exists() and config.ssh_config == OPTIONAL_CONFIG:
        return {"hostname": name}
    text = read_config_text(path)
    import paramiko

    try:
        options: Mapping[str, Any] = paramiko.SSHConfig.from_text(text).lookup(name)
    except Exception as e:  # it raises whatever its parts do, ImportError for `Match exec` too
        raise UsageError(
            f"{path}: cannot be used for {name}: {e or type(e).__name__}; give target.ssh_config="
            "another file, or null and the target's own keys (host, user, port, key_file)"
        ) from e
    for key, harmless in REFUSED.items():
        value = options.get(key)
        if value is not None and str(value).lower() != harmless:
            raise UsageError(
                f"{path}: {key} {value} (for {name}) is not supported; give target.ssh_config="
                "another file, or null and the target's own keys (host, user, port, key_file)"
            )
    return options


def _hop(
    config: SshConfig,
    name: str,
    user: str | None,
    port: int | None,
    options: Mapping[str, Any],
    *,
    last: bool,
    jumps: bool,
) -> Hop:
    where = f"{config.ssh_config}: for {name}"
    named = [Path(file).expanduser() for file in options.get("identityfile", [])]
    only = str(options.get("identitiesonly", "no")).lower() == "yes"
    if last and config.key_file is not None:
        named, only = [_key_file(config.key_file)], True
    named = [file for file in named if file.name.lower() != "none"]
    timeout_s = config.connect_timeout_s
    if str(options.get("connecttimeout", "none")).isdecimal():
        timeout_s = min(timeout_s, max(1.0, float(options["connecttimeout"])))
    return Hop(
        name=name,
        host=options.get("hostname", name),
        port=port or _port(str(options.get("port", SSH_PORT)), where),
        user=user or options.get("user") or getpass.getuser(),
        key_files=tuple(named),
        default_keys=() if named else tuple(Path(file).expanduser() for file in DEFAULT_KEYS),
        only_named_keys=only,
        agent=_agent(options.get("identityagent")),
        alias=options.get("hostkeyalias"),
        known_files=_known_files(config, options, where),
        connect_timeout_s=timeout_s,
        timeout_s=config.connect_timeout_s,
        family=str(options.get("addressfamily", "any")).lower(),
        bind_address=options.get("bindaddress"),
        proxy_command=None if jumps else options.get("proxycommand"),
        is_jump=not last,
        config_file=config.ssh_config,
    )


def _key_file(text: str) -> Path:
    path = Path(text).expanduser()
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UsageError(f"target.key_file: {path} is not there") from None
    except OSError as e:
        raise UsageError(f"target.key_file: {path} cannot be used: {e.strerror}") from e
    if stat.S_ISDIR(mode):
        raise UsageError(
            f"target.key_file: {path} is a directory; name the private key in it, such as "
            f"{path / 'id_ed25519'}"
        )
    if not stat.S_ISREG(mode):
        raise UsageError(f"target.key_file: {path} is no regular file; name a private key's")
    return path


def _agent(value: str | None) -> str | None:
    if value is None or value == "SSH_AUTH_SOCK":
        return None
    if value.lower() == "none":
        return ""
    if value.startswith("$"):
        raise UsageError(
            f"IdentityAgent {value} is not supported; write the path, or set SSH_AUTH_SOCK"
        )
    return str(Path(value).expanduser())


def _known_files(config: SshConfig, options: Mapping[str, Any], where: str) -> tuple[Path, ...]:
    if config.known_hosts is not None:
        return (Path(config.known_hosts).expanduser(),)
    files: list[str] = []
    for key, default in (
        ("userknownhostsfile", KNOWN_HOSTS),
        ("globalknownhostsfile", SYSTEM_KNOWN_HOSTS),
    ):
        try:
            named = shlex.split(options[key]) if key in options else list(default)
        except ValueError as e:
            raise UsageError(f"{where}: {key} {options[key]}: {e}") from e
        files += [file for file in named if file.lower() not in ("none", "/dev/null")]
    return tuple(Path(file).expanduser() for file in files)
