"""A phone's settings while a campaign runs: on before it, back after it. Through the target."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harness.errors import DeviceError, HarnessError
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
        self._began = False

    def prepare(self) -> tuple[android.SettingOutcome, ...]:
        """Switch on what the configuration asks for; what became of it. Raises DeviceError."""
        config = self._config
        if not isinstance(config, AdbConfig):
            return ()
        self._began = True  # from here on there may be something to put back, however this ends
        restore = android.prepare(
            self._target.call,
            config.dir,
            fixed_performance=config.fixed_performance,
            stay_awake=config.stay_awake,
        )
        if isinstance(self._target, RemoteTarget):
            self._target.on_restart = partial(self._prepare_again, self._target.wait)
        for outcome in restore.settings:
            if outcome.took is False:
                self._say(f"warning: {outcome.setting} could not be switched on: {outcome.reason}")
        return restore.settings

    def _prepare_again(self, nap: Callable[[float], None]) -> None:
        """A phone that restarted has forgotten some of it. No reason to end a campaign."""
        try:
            android.await_services(self._target.call, nap)
            self.prepare()
        except DeviceError as e:
            self._say(f"warning: the phone's settings are not what they were: {e}")

    def put_back(self) -> None:
        """As it was before; what fails is said, and put back by the next campaign there."""
        if not self._began or not isinstance(self._config, AdbConfig):
            return
        if isinstance(self._target, RemoteTarget):
            self._target.on_restart = lambda: None  # not to be switched on again meanwhile
        try:
            outcomes = android.put_back(self._target.call, self._config.dir)
            failed = [o for o in outcomes if o.took is False]
            words = "; ".join(f"{o.setting}: {o.reason}" for o in failed)
        except HarnessError as e:
            words = str(e)
        if words:
            self._say(
                f"warning: the phone's settings were not all put back (the next campaign on it "
                f"tries again): {words}"
            )
