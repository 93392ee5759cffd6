"""A phone's settings while a campaign runs: on before it, back after it. Through the target."""

from __future__ import annotations

from collections.abc import Callable

from harness.errors import HarnessError
from harness.target_config import AdbConfig, TargetConfig
from harness.targets import android
from harness.targets.remote import RemoteTarget
from harness.targets.target import Target


class Phone:
    """The settings of one phone, as far as it lets us; of other targets there are none."""

    def __init__(self, config: TargetConfig, target: Target, say: Callable[[str], None]) -> None:
        """Changes nothing yet. `say` is told what could not be had, or put back."""
        self._config = config
        self._target = target
        self._say = say
        self._restore: android.Restore | None = None

    def prepare(self) -> tuple[android.SettingOutcome, ...]:
        """Switch on what the configuration asks for; what became of it. Raises DeviceError."""
        config = self._config
        if not isinstance(config, AdbConfig):
            return ()
        self._restore = android.prepare(
            self._target.call,
            config.dir,
            fixed_performance=config.fixed_performance,
            stay_awake=config.stay_awake,
        )
        if isinstance(self._target, RemoteTarget):
            self._target.on_restart = self._prepare_again
        for outcome in self._restore.settings:
            if outcome.took is False:
                self._say(f"warning: {outcome.setting} could not be switched on: {outcome.reason}")
        return self._restore.settings

    def _prepare_again(self) -> None:
        """A phone that restarted has forgotten some of it. No reason to end a campaign."""
        try:
            self.prepare()
        except HarnessError as e:
            self._say(f"warning: the phone's settings are not what they were: {e}")

    def put_back(self) -> None:
        """As it was before; what fails is said, and put back by the next campaign there."""
        if self._restore is None:
            return
        try:
            failed = [o for o in self._restore.put_back() if o.took is False]
            words = "; ".join(f"{o.setting}: {o.reason}" for o in failed)
        except HarnessError as e:
            words = str(e)
        if words:
            self._say(f"warning: the phone's settings were not all put back: {words}")
