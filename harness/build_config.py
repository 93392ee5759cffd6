"""Typed configuration of `build`: what engine and launcher are compiled with. Touches nothing.

What a key means is said in `conf/config.yaml` and `docs/build.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.errors import UsageError


@dataclass(frozen=True)
class BuildConfig:
    toolchain: Literal["host", "zig", "ndk"] | None = None
    ndk_dir: str | None = None


# of campaigns that were configured before there was a choice
USUAL_BUILD = BuildConfig()


def check_build(build: BuildConfig, *, all_given: bool) -> None:
    """Refuse what cannot act; `all_given`: engine and launcher are the user's own executables."""
    if build.toolchain is not None and all_given:
        raise UsageError(
            f"build.toolchain: {build.toolchain} cannot act, engine and launcher are given and "
            "so built already; set it to null"
        )
    if build.ndk_dir is not None and build.toolchain != "ndk":
        raise UsageError("build.ndk_dir: acts only with build.toolchain=ndk; set it to null")
