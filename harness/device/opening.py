"""From the configuration of a target to one that answers. Connects; changes nothing there."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.errors import DeviceError
from harness.target_config import LocalConfig, SshConfig, TargetConfig
from harness.targets.link import Link
from harness.targets.local import LocalTarget
from harness.targets.lockfile import DEFAULT_LOCK
from harness.targets.target import Target

if TYPE_CHECKING:
    from harness.build.host import BuildHost

FACTS_S = 30.0


@dataclass(frozen=True)
class Machine:
    """What decides which engine runs there, and how a plan uses it."""

    uname: str  # as `uname -m` says it
    cpuinfo: str  # /proc/cpuinfo
    android: bool
    cores: int


def open_target(
    config: TargetConfig,
    *,
    say: Callable[[str], None],
    on_transfer: Callable[[str, int, int], None],
) -> Target:
    """Connect. Raises UsageError or DeviceError with what to do.

    `say` is told of breaks, `on_transfer` of a file on its way there: its name, bytes, and all.
    """
    if isinstance(config, LocalConfig):
        return LocalTarget(config.name, config.device_lock)
    from harness.targets.remote import RemoteTarget

    link: Link
    if isinstance(config, SshConfig):
        from harness.targets.ssh import SshLink

        link = SshLink(config)
        name, lock = config.name or config.host, DEFAULT_LOCK
    else:
        from harness.targets.adb import AdbLink

        link = AdbLink(config)
        name = config.name or link.serial
        # on a phone /tmp does not exist, and whoever comes over adb can write beside us
        lock = f"{PurePosixPath(config.dir).parent}/moe-harness.lock"
    try:
        target = RemoteTarget(
            link,
            config.kind,
            name,
            directory=config.dir,
            device_lock=config.device_lock or lock,
            lease_s=config.lease_s,
            reconnect_s=config.reconnect_s,
        )
    except BaseException:
        link.close()
        raise
    target.say, target.on_transfer = say, on_transfer
    return target


def machine_of(target: Target) -> Machine | None:
    """The machine behind a target; None: this one.

    Raises DeviceError when it does not say what it is.
    """
    if target.id.kind == "local":
        return None
    asked = "uname -m && if [ -d /system/bin ]; then echo android; else echo other; fi"
    done = target.call(["sh", "-c", f"{asked} && cat /proc/cpuinfo"], timeout_s=FACTS_S)
    uname, _, rest = done.stdout.decode(errors="replace").partition("\n")
    system, _, cpuinfo = rest.partition("\n")
    cores = sum(line.partition(":")[0].strip() == "processor" for line in cpuinfo.splitlines())
    if done.code != 0 or not cores:
        raise DeviceError(
            f"{target.id.name}: does not say what machine it is (uname, /proc/cpuinfo); "
            "the harness measures on Linux and Android"
        )
    return Machine(uname, cpuinfo, system == "android", cores)


def compile_host(target: Target, wait_s: float) -> BuildHost | None:
    """The target as a machine to compile on; None for those that have no compilers, and this one.

    `wait_s`: so long for a campaign that measures there.
    """
    from harness.build.host import BuildHost
    from harness.targets.remote import RemoteTarget

    if target.id.kind != "ssh" or not isinstance(target, RemoteTarget):
        return None
    return BuildHost(
        target.id.name,
        target.home,
        target.call,
        target.transfer,
        target.fetch,
        target.device_lock,
        math.ceil(wait_s),
    )


def cores_of(machine: Machine | None) -> int:
    """Cores that a plan may use."""
    return machine.cores if machine is not None else os.cpu_count() or 1
