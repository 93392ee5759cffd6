"""Typed configuration of the device that cells run on: `target`, by its `kind`. Touches nothing.

What a key means is said in `conf/target/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.errors import UsageError
from harness.typed import from_mapping, ranged, say


@dataclass(frozen=True)
class LocalConfig:
    kind: Literal["local"]
    name: str | None = None
    device_lock: str | None = None


@dataclass(frozen=True)
class SshConfig:
    kind: Literal["ssh"]
    host: str
    name: str | None
    port: int | None = field(metadata=ranged(1, 65535))
    user: str | None
    key_file: str | None
    known_hosts: str | None
    ssh_config: str | None
    proxy_jump: str | None
    dir: str
    device_lock: str | None
    connect_timeout_s: float = field(metadata=ranged(above=0, high=600))
    lease_s: float = field(metadata=ranged(3, 3600))
    reconnect_s: float = field(metadata=ranged(0, 86400))


@dataclass(frozen=True)
class AdbConfig:
    kind: Literal["adb"]
    serial: str | None
    name: str | None
    adb: str
    dir: str
    device_lock: str | None
    fixed_performance: bool
    stay_awake: bool
    connect_timeout_s: float = field(metadata=ranged(above=0, high=600))
    lease_s: float = field(metadata=ranged(3, 3600))
    reconnect_s: float = field(metadata=ranged(0, 86400))


TargetConfig = LocalConfig | SshConfig | AdbConfig
KINDS: dict[str, type[TargetConfig]] = {"local": LocalConfig, "ssh": SshConfig, "adb": AdbConfig}


def check_target(data: Mapping[str, Any]) -> TargetConfig:
    """The `target` of a configuration, typed. Raises UsageError for the first fault."""
    kind = data.get("kind")
    if kind not in KINDS:
        raise UsageError(f"target.kind: found {say(kind)}; needs one of {', '.join(KINDS)}")
    config: TargetConfig = from_mapping(KINDS[kind], data, "target")
    for key, value in vars(config).items():
        if isinstance(value, str) and not value.strip():
            raise UsageError(f"target.{key}: empty; give a value, or null where there is none")
        if isinstance(value, str) and "\0" in value:
            raise UsageError(f"target.{key}: holds a NUL character")
    return config
