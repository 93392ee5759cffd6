"""What a device may do to a campaign's speed: eight scenarios of drift, in physical terms. Pure.

The figures were read off seventeen published campaigns of an independent simulator and off what
VERDICTS.md says of real cells; docs/simulator.md has both beside ours. `Range`: the campaign draws
one value of it, uniformly.
"""

from __future__ import annotations

from dataclasses import dataclass

Range = tuple[float, float]

# a phone's steps down from its highest frequency, in kHz
CAPS_KHZ = (2265600, 2188800, 1900800, 1747200, 1555200)


@dataclass(frozen=True)
class Heating:
    """The battery as the device's one thermal mass, heated while a cell runs, cooled while not.

    `rise_c`: above its start, where it would end at the highest frequency with cells of 47 s every
    77 s. `tau_s`: its time constant.
    """

    start_c: Range = (29.5, 32.5)
    rise_c: Range = (0.2, 2.2)
    tau_s: Range = (500.0, 1000.0)


@dataclass(frozen=True)
class SoftThrottling:
    """Slowing under an unmoved cap, of reading and computing alike, with the battery's rise.

    ln slowdown = `log_max` (1 - exp(-(rise - `onset_c`) / `scale_c`)), 0 below the onset.
    """

    log_max: Range
    onset_c: Range
    scale_c: float


@dataclass(frozen=True)
class CapStep:
    """One step down of the frequency cap once the battery has risen by `trip_c`.

    Computing slows by the ratio of the frequencies and by `compute`; reading by `io`.
    """

    trip_c: Range
    compute: float
    io: float


@dataclass(frozen=True)
class Episodes:
    """Slow stretches that come and go: exponential lengths, a new size each time.

    `log_size`: ln of the slowdown of computing; reading has `io_share` of it. `stall_factor`: how
    much more often tokens stall meanwhile; `long_stall_share`: of them, for seconds.
    """

    on_s: float
    off_s: float
    log_size: Range
    io_share: float
    stall_factor: float = 1.0
    long_stall_share: float = 0.0


@dataclass(frozen=True)
class MemoryPressure:
    """Memory that others fill: from 0 to all of this with time constant `tau_s`.

    `stall_share`: of tokens. `stall_scale`: of the stalls' sizes. `log_creep`: ln slowdown of the
    typical token. `fall_bytes`: of MemAvailable.
    """

    tau_s: Range
    stall_share: float
    stall_scale: float
    log_creep: float
    fall_bytes: float


@dataclass(frozen=True)
class Scenario:
    """One kind of day; what is None does not happen."""

    name: str
    heating: Heating = Heating()
    soft: SoftThrottling | None = None
    caps: tuple[CapStep, ...] = ()
    steps: Episodes | None = None
    bursts: Episodes | None = None
    pressure: MemoryPressure | None = None


_NONE = Scenario("none")
_MILD = Scenario(
    "mild",
    Heating(rise_c=(2.5, 3.5)),
    soft=SoftThrottling((0.045, 0.065), (0.0, 0.1), 1.0),
)
_RAMP17 = Scenario(
    "ramp17",
    Heating(start_c=(32.0, 33.5), rise_c=(6.0, 8.5), tau_s=(450.0, 700.0)),
    caps=(
        CapStep((0.1, 0.6), 1.03, 1.16),
        CapStep((0.6, 1.4), 1.065, 1.335),
        CapStep((1.0, 2.2), 1.065, 1.34),
        CapStep((3.5, 8.0), 1.065, 1.345),
    ),
)
_DAY40 = Scenario(
    "day40",
    Heating(start_c=(31.5, 33.7), rise_c=(6.0, 8.5), tau_s=(1000.0, 1300.0)),
    soft=SoftThrottling((0.5, 0.62), (0.5, 1.3), 3.3),
    caps=(CapStep((0.6, 1.2), 1.0, 1.0), CapStep((2.0, 4.0), 1.0, 1.02)),
)
_STEP = Scenario(
    "step",
    Heating(start_c=(29.5, 31.0), rise_c=(1.0, 3.5)),
    steps=Episodes(on_s=115.0, off_s=110.0, log_size=(0.08, 0.25), io_share=0.5),
)
_BURSTS = Scenario(
    "bursts",
    Heating(rise_c=(0.5, 2.2)),
    bursts=Episodes(
        on_s=28.0,
        off_s=290.0,
        log_size=(0.15, 0.33),
        io_share=1.0,
        stall_factor=5.0,
        long_stall_share=0.01,
    ),
)
_RECLAIM = Scenario(
    "reclaim",
    Heating(rise_c=(-1.5, 1.5)),
    pressure=MemoryPressure(
        tau_s=(400.0, 800.0),
        stall_share=0.165,
        stall_scale=1.4,
        log_creep=0.025,
        fall_bytes=1.8e9,
    ),
)
_STORM = Scenario(
    "storm",
    Heating(rise_c=(5.5, 6.5), tau_s=(500.0, 800.0)),
    caps=(CapStep((0.5, 1.4), 1.03, 1.0), CapStep((1.7, 2.8), 1.05, 1.01)),
    bursts=Episodes(
        on_s=34.0,
        off_s=240.0,
        log_size=(0.12, 0.32),
        io_share=1.0,
        stall_factor=1.5,
        long_stall_share=0.002,
    ),
    pressure=MemoryPressure(
        tau_s=(200.0, 400.0),
        stall_share=0.15,
        stall_scale=1.3,
        log_creep=0.04,
        fall_bytes=1.75e9,
    ),
)

SCENARIOS: dict[str, Scenario] = {
    s.name: s for s in (_NONE, _MILD, _RAMP17, _DAY40, _STEP, _BURSTS, _RECLAIM, _STORM)
}
