"""A real sshd for tests: on loopback, or in a network of its own that can be cut and slowed.

`Sshd` is a machine to log in to: its own host keys, its own `authorized_keys`, and a HOME for the
client with key and known_hosts. As root it can also have a home, a login shell and a process tree
of its own, which makes it a machine that can be switched off.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port

from harness.target_config import SshConfig

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
CLONE_NEWNET = 0x40000000


def needs_sshd() -> None:
    """Skip the test where there is no sshd."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd, or no ssh-keygen (Debian: openssh-server)")


def needs_root() -> None:
    """Skip the test where namespaces cannot be made."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root, and unshare")


def make_key(
    path: Path, kind: str = "ed25519", passphrase: str = "", comment: str = "test"
) -> None:
    """A key pair at `path` and `path`.pub."""
    path.parent.mkdir(parents=True, exist_ok=True)
    argv = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", comment, "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


class Sshd:
    """A machine with an sshd. `start` it before use, and `stop` it after.

    Commands there do not read the start-up files of whoever runs the tests, unless it has a home of
    its own: what those do (pyenv's take seconds, and turns) is not of these tests. `environment` is
    for that, in a form for SetEnv, of which sshd takes the first line only: other settings of that
    kind begin with it.
    """

    # bash reads its own for sshd only when it is the outermost shell
    environment = f"SHLVL=2 PATH={Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"

    def __init__(
        self,
        root: Path,
        *,
        address: str = "127.0.0.1",
        port: int | None = None,
        key_types: tuple[str, ...] = ("ed25519",),
        settings: str = "",
        home: bool = False,
        shell: str | None = None,
        own_processes: bool = False,
        prefix: tuple[str, ...] = (),
    ) -> None:
        """`settings` are lines of sshd_config; they win. `home`: the user's home there is an empty
        directory (`self.home`), not this machine's; `shell`: the login shell; `own_processes`: in a
        PID namespace, see `switch_off`. These three need root. `prefix` goes before the command.
        """
        needs_sshd()
        self.root = root
        self.address = address
        self.port = port or free_port()
        self.client_home = root / "client"
        self.key = self.client_home / ".ssh" / "id_ed25519"
        self.known_hosts = self.client_home / ".ssh" / "known_hosts"
        self.authorized_keys = root / "authorized_keys"
        self.log = root / "sshd.log"
        self.home = root / "home" if home or shell else Path.home()
        self.key_types = key_types
        self.boot_id = root / "boot_id"
        self._settings = settings
        self._own_home, self._shell, self._own_processes = home or bool(shell), shell, own_processes
        if self._own_home or own_processes:
            needs_root()
        self._prefix = prefix
        self._process: subprocess.Popen[bytes] | None = None
        self._write()

    def host_key(self, kind: str) -> Path:
        """The machine's private key of a type; `.pub` is beside it."""
        return self.root / f"host_{kind}"

    def _write(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.key.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        if not self.key.exists():
            make_key(self.key)
        for kind in self.key_types:
            if not self.host_key(kind).exists():
                make_key(self.host_key(kind), kind, comment="host")
        self.authorized_keys.write_bytes(self.key.with_suffix(".pub").read_bytes())
        self.authorized_keys.chmod(0o600)
        self.write_known_hosts()
        if self._own_home:
            self.home.mkdir(exist_ok=True)
        self.configure(self._settings)

    def configure(self, settings: str) -> None:
        """Write its configuration, with these settings first; takes effect at the next start."""
        env = "" if self._own_home else f"SetEnv {self.environment}"
        keys = "\n".join(f"HostKey {self.host_key(kind)}" for kind in self.key_types)
        (self.root / "sshd_config").write_text(f"""{settings}
Port {self.port}
ListenAddress {self.address}
{keys}
PidFile none
AuthorizedKeysFile {self.authorized_keys}
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
MaxSessions 100
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
{env}
""")

    def known_line(self, kind: str, name: str | None = None) -> str:
        """A line of known_hosts for one of its keys."""
        kind_and_key = " ".join(self.host_key(kind).with_suffix(".pub").read_text().split()[:2])
        default = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return f"{name or default} {kind_and_key}\n"

    def write_known_hosts(self) -> None:
        """The client knows all its keys."""
        self.known_hosts.write_text("".join(self.known_line(kind) for kind in self.key_types))

    def start(self) -> Sshd:
        """Start it and wait until it listens; on the same port as before."""
        assert self._process is None
        sshd = [SSHD or "sshd", "-D", "-f", str(self.root / "sshd_config"), "-E", str(self.log)]
        argv = [*self._prefix, *self._around(sshd)]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        until = time.monotonic() + 120
        while b"Server listening" not in (self.log.read_bytes() if self.log.exists() else b""):
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, "sshd does not start"
            time.sleep(0.02)
        return self

    def _around(self, sshd: list[str]) -> list[str]:
        """sshd with the home, shell and process tree that were asked for."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # as its service does
        if not self._own_home and not self._own_processes:
            return sshd
        script = ""
        if self._own_home:
            script += (
                f"mount --bind {shlex.quote(str(self.home))} {shlex.quote(str(Path.home()))}\n"
            )
        if self._shell is not None:
            passwd = self.root / "passwd"
            lines = Path("/etc/passwd").read_text().splitlines()
            me = next(i for i, line in enumerate(lines) if line.split(":")[2] == str(os.geteuid()))
            lines[me] = ":".join([*lines[me].split(":")[:-1], self._shell])
            passwd.write_text("\n".join(lines) + "\n")
            script += f"mount --bind {shlex.quote(str(passwd))} /etc/passwd\n"
        if self._own_processes:
            uuid = Path("/proc/sys/kernel/random/uuid").read_text()
            self.boot_id.write_text(uuid)
            script += (
                f"mount --bind {shlex.quote(str(self.boot_id))} /proc/sys/kernel/random/boot_id\n"
            )
        unshare = ["unshare", "-m"]
        if self._own_processes:
            unshare += ["-p", "-f", "--kill-child", "--mount-proc"]
        return [*unshare, "sh", "-ec", script + 'exec "$@"', "sh", *sshd]

    def stop(self) -> None:
        """End it with all its sessions at once (SIGKILL), if it runs; what detached itself from
        a session goes on, unless it has a process tree of its own."""
        if self._process is None:
            return
        for listener in self.sessions()[:1]:  # or it takes one more while the others are killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(listener, signal.SIGSTOP)
        for pid in reversed(self.sessions()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._process = None
        self.log.unlink(missing_ok=True)

    kill = stop

    def stop_listening(self) -> None:
        """End the listener alone: sessions go on, new connections are refused."""
        assert self._process is not None
        listener = sshds_below(self._process.pid)[0]
        os.kill(listener, signal.SIGTERM)
        until = time.monotonic() + 60
        while self.listens():
            assert time.monotonic() < until
            time.sleep(0.02)

    def listens(self) -> bool:
        with socket.socket() as s:
            s.settimeout(2)
            return s.connect_ex((self.address, self.port)) == 0

    def switch_off(self) -> None:
        """As a power cut: with `own_processes`, everything that ran there is gone at once, and the
        next start has another boot id."""
        assert self._own_processes
        self.stop()

    def restart(self) -> None:
        self.stop()
        self.start()

    def sessions(self) -> list[int]:
        """Processes of its sshd, the listener first."""
        return [] if self._process is None else sshds_below(self._process.pid)

    def config(self, **changes: object) -> SshConfig:
        """How the client is to log in: with this machine's key and known_hosts, and nothing of
        the user's own."""
        base = SshConfig(
            kind="ssh",
            host=self.address,
            name=None,
            port=self.port,
            user=None,
            key_file=str(self.key),
            known_hosts=str(self.known_hosts),
            ssh_config=None,
            proxy_jump=None,
            dir=str(self.root / "device"),
            device_lock=None,
            connect_timeout_s=20.0,
            lease_s=20.0,
            reconnect_s=300.0,
        )
        return dataclasses.replace(base, **changes)  # type: ignore[arg-type]

    def overrides(self) -> list[str]:
        """The same for a command line of the harness."""
        return [
            "target=ssh",
            f"target.host={self.address}",
            f"target.port={self.port}",
            f"target.key_file={self.key}",
            f"target.known_hosts={self.known_hosts}",
            "target.ssh_config=null",
            f"target.dir={self.root / 'device'}",
        ]


def sshds_below(pid: int) -> list[int]:
    """`pid` and its descendants that are sshd, parents first."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except (OSError, ValueError):
            continue
        child = int(stat.parent.name)
        names[child] = name
        children.setdefault(int(rest.split()[1]), []).append(child)
    found, todo = [], [pid]
    while todo:
        one = todo.pop(0)
        if names.get(one, "").startswith("sshd"):
            found.append(one)
        todo += children.get(one, [])
    return found


class Network:
    """Two machines' networks with one cable: the client's (`inside`) and the server's."""

    CLIENT, SERVER = "10.211.55.1", "10.211.55.2"

    def __init__(self) -> None:
        needs_root()
        if shutil.which("ip") is None or shutil.which("nsenter") is None:
            pytest.skip("no ip, or no nsenter (Debian: iproute2, util-linux)")
        self._holders: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(2):
                holder = subprocess.Popen(
                    [
                        "unshare",
                        "-n",
                        "sh",
                        "-c",
                        "ip link set lo up && echo up && exec sleep 86400",
                    ],
                    stdout=subprocess.PIPE,
                )
                self._holders.append(holder)
                assert holder.stdout is not None
                if holder.stdout.readline() != b"up\n":
                    pytest.skip("no network namespaces here")
            server = self._holders[1].pid
            cable = f"ip link add cable0 type veth peer name cable1 netns {server}"
            self._in(
                0, f"{cable} && ip addr add {self.CLIENT}/24 dev cable0 && ip link set cable0 up"
            )
            self._in(1, f"ip addr add {self.SERVER}/24 dev cable1 && ip link set cable1 up")
        except BaseException:
            self.close()
            raise

    def _in(self, which: int, script: str) -> None:
        subprocess.run([*self._enter(which), "sh", "-ec", script], check=True)

    def _enter(self, which: int) -> tuple[str, ...]:
        return ("nsenter", f"--net=/proc/{self._holders[which].pid}/ns/net")

    @property
    def client_prefix(self) -> tuple[str, ...]:
        """Before a command that is to run on the client's side."""
        return self._enter(0)

    @property
    def server_prefix(self) -> tuple[str, ...]:
        """Before a command that is to run on the server's side: `Sshd(prefix=...)`."""
        return self._enter(1)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and those it starts, on the client's side."""
        libc = ctypes.CDLL(None, use_errno=True)

        def enter(path: str) -> None:
            with Path(path).open() as f:
                if libc.setns(f.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")

        with Path("/proc/thread-self/ns/net").open() as own:
            enter(f"/proc/{self._holders[0].pid}/ns/net")
            try:
                yield
            finally:
                if libc.setns(own.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")

    def cut(self) -> None:
        """Pull the cable: nothing goes through any more, and nobody is told so by packets."""
        self._in(1, "ip link set cable1 down")

    def swallow(self) -> None:
        """What the client sends arrives, but nothing comes back; the cable stays plugged in."""
        self._in(1, f"ip route replace blackhole {self.CLIENT}/32")

    def mend(self) -> None:
        """All as before `cut` and `swallow`."""
        self._in(1, f"ip route del blackhole {self.CLIENT}/32 2>/dev/null || true")
        self._in(1, "ip link set cable1 up")
        until = time.monotonic() + 60
        for which, device in enumerate(("cable0", "cable1")):
            show = [*self._enter(which), "ip", "-br", "link", "show", "dev", device]
            while b" UP " not in subprocess.run(show, check=True, capture_output=True).stdout:
                assert time.monotonic() < until, "the cable does not come up"
                time.sleep(0.05)
            # neighbours that were looked for in vain are not looked for again at once
            self._in(which, f"ip neigh flush dev {device}")

    def slow(self, rate: str | None, queue_ms: int = 200) -> None:
        """Both ways no faster than `rate`, such as 8mbit, with a queue that takes so long to drain;
        None: as fast as it goes."""
        if shutil.which("tc") is None:
            pytest.skip("no tc (Debian: iproute2)")
        for which, device in enumerate(("cable0", "cable1")):
            self._in(which, f"tc qdisc del dev {device} root 2>/dev/null || true")
            if rate is not None:
                how = f"tbf rate {rate} burst 32kb latency {queue_ms}ms"
                done = subprocess.run(
                    [*self._enter(which), *f"tc qdisc add dev {device} root {how}".split()],
                    check=False,
                    capture_output=True,
                )
                if done.returncode != 0:
                    pytest.skip(f"no tbf here: {done.stderr.decode().strip()}")

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
            if holder.stdout is not None:
                holder.stdout.close()
