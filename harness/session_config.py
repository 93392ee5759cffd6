"""Typed configuration of what a session waits for and watches: `schedule.gate`, `session`.

Touches nothing. What a key means is said in `conf/schedule/fixed.yaml` and `conf/config.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.errors import UsageError
from harness.typed import ranged

# what the launcher takes for a temperature at all (docs/launcher.md)
_LOW_C, _HIGH_C = 1, 150
_MAX_MIB = 2**30


@dataclass(frozen=True)
class GateConfig:
    """Conditions that must hold, all at once, before a cell starts. None: not waited for."""

    cpu_temp_max_c: float | None = field(default=None, metadata=ranged(_LOW_C, _HIGH_C))
    mem_available_min_mb: int | None = field(default=None, metadata=ranged(1, _MAX_MIB))
    cap_min_pct: float | None = field(default=None, metadata=ranged(above=0, high=100))
    wait_max_s: float = field(default=600.0, metadata=ranged(0, 86400))
    on_timeout: Literal["run", "stop"] = "run"

    @property
    def asks(self) -> bool:
        """Whether there is anything to wait for."""
        conditions = (self.cpu_temp_max_c, self.mem_available_min_mb, self.cap_min_pct)
        return any(limit is not None for limit in conditions)


@dataclass(frozen=True)
class SessionConfig:
    """What is watched while a cell runs, and what a session does about what it sees.

    None: not watched. The limits are those of `harness.readings.Excursion`.
    """

    cpu_temp_max_c: float | None = field(default=None, metadata=ranged(_LOW_C, _HIGH_C))
    cpu_temp_rise_c: float | None = field(default=None, metadata=ranged(above=0, high=_HIGH_C))
    cap_drop_pct: float | None = field(default=10.0, metadata=ranged(0, 99))
    on_throttle: Literal["mark", "repeat", "stop"] = "mark"
    max_repeats: int = field(default=2, metadata=ranged(0, 100))
    wait_for_device_s: float = field(default=0.0, metadata=ranged(0, 30 * 86400))

    @property
    def watches(self) -> bool:
        """Whether any limit is set."""
        limits = (self.cpu_temp_max_c, self.cpu_temp_rise_c, self.cap_drop_pct)
        return any(limit is not None for limit in limits)


# of campaigns that were stored before there were such settings
NO_GATES = GateConfig()
USUAL_SESSION = SessionConfig()


def check_session(session: SessionConfig, gate: GateConfig) -> None:
    """Raises UsageError for settings that cannot act together."""
    if session.on_throttle != "mark" and not session.watches:
        raise UsageError(
            f"session.on_throttle: {session.on_throttle} cannot act where nothing is watched; set "
            "session.cpu_temp_max_c, cpu_temp_rise_c or cap_drop_pct, or use mark"
        )
    if gate.on_timeout != "run" and not gate.asks:
        raise UsageError(
            f"schedule.gate.on_timeout: {gate.on_timeout} cannot act where nothing is waited for; "
            "set schedule.gate.cpu_temp_max_c, mem_available_min_mb or cap_min_pct, or use run"
        )
