"""Logging in to a real sshd: keys, agent, host keys, jump hosts; and what is said when it fails."""

from __future__ import annotations

import dataclasses
import getpass
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port
from ssh_parts import Sshd, make_key

from harness.errors import DeviceError, UsageError
from harness.target_config import SshConfig
from harness.targets.link import LinkLost
from harness.targets.ssh import SshLink
from harness.targets.ssh_keys import LoginRefused
from harness.targets.ssh_known import HostKeyRefused, fingerprint


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    kinds = ("ed25519", "rsa", "ecdsa")
    # a home of its own: startup files of this one would only take time
    machine = Sshd(tmp_path_factory.mktemp("sshd"), key_types=kinds, home=os.geteuid() == 0)
    machine.start()
    yield machine
    machine.stop()


@pytest.fixture
def home(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own directory, in which the machine is known; no agent, no keys."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    ssh = tmp_path / ".ssh"
    ssh.mkdir(mode=0o700)
    sshd.write_known_hosts()
    shutil.copy(sshd.known_hosts, ssh / "known_hosts")
    return tmp_path


@pytest.fixture
def authorized(sshd: Sshd) -> Iterator[Path]:
    """Who may log in; as before afterwards."""
    before = sshd.authorized_keys.read_bytes()
    yield sshd.authorized_keys
    sshd.authorized_keys.write_bytes(before)


@pytest.fixture
def agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real agent, without keys."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("no ssh-agent")
    path = Path(f"/tmp/moe-agent-{os.getpid()}.sock")
    path.unlink(missing_ok=True)
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield path
    process.terminate()
    process.wait()


def add_key(path: Path, passphrase: str = "") -> None:
    """To the agent, with its passphrase if it has one."""
    ask = path.parent / "ask"
    ask.write_text(f"#!/bin/sh\necho {passphrase}\n")
    ask.chmod(0o700)
    environment = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(["ssh-add", "-q", path], check=True, env=environment)


def plain(sshd: Sshd, **changes: object) -> SshConfig:
    """Nothing given but where it is."""
    return sshd.config(
        **{"key_file": None, "known_hosts": None, "ssh_config": "~/.ssh/config", **changes}
    )


def says(config: SshConfig) -> None:
    link = SshLink(config)
    assert link.call(["echo", "in"], timeout_s=120).stdout == b"in\n"
    link.close()


def refusal(config: SshConfig, kind: type[DeviceError] = DeviceError) -> str:
    with pytest.raises(kind) as e:
        SshLink(config)
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 900
    return str(e.value)


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_key_files(sshd: Sshd, home: Path, authorized: Path, kind: str) -> None:
    key = home / "my key"
    make_key(key, kind)
    authorized.write_bytes(Path(f"{key}.pub").read_bytes())
    says(plain(sshd, key_file="~/my key"))
    (home / ".ssh" / "config").write_text(f'IdentityFile "{key}"\n')
    says(plain(sshd))
    (home / ".ssh" / "config").unlink()
    key.rename(home / ".ssh" / f"id_{kind}")
    says(plain(sshd))


@pytest.mark.parametrize("format_", ["PEM", "PKCS8"])
def test_key_files_of_other_formats(sshd: Sshd, home: Path, authorized: Path, format_: str) -> None:
    key = home / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "rsa", "-m", format_, "-N", "", "-f", key], check=True
    )
    authorized.write_bytes(Path(f"{key}.pub").read_bytes())
    if format_ == "PEM":
        says(plain(sshd, key_file=str(key)))
    else:
        assert "is no private key of OpenSSH" in refusal(plain(sshd, key_file=str(key)))
    locked = home / "locked"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "rsa", "-m", format_, "-N", "secret words", "-f", locked],
        check=True,
    )
    text = refusal(plain(sshd, key_file=str(locked)))
    assert f"{locked} has a passphrase: add it to the agent: ssh-add {locked}" in text


def test_a_key_with_a_passphrase(sshd: Sshd, agent: Path, home: Path, authorized: Path) -> None:
    key = home / "my locked key"
    make_key(key, "ed25519", "secret words")
    authorized.write_bytes(Path(f"{key}.pub").read_bytes())
    text = refusal(plain(sshd, key_file=str(key)))
    assert f"{key} has a passphrase: add it to the agent: ssh-add '{key}'" in text
    assert "secret" not in text
    add_key(key, "secret words")
    says(plain(sshd, key_file=str(key)))
    Path(f"{key}.pub").unlink()
    says(plain(sshd, key_file=str(key)))


def test_the_agents_keys(sshd: Sshd, agent: Path, home: Path, authorized: Path) -> None:
    for number in range(3):
        make_key(home / f"key{number}", comment=f"number {number}")
        add_key(home / f"key{number}")
    authorized.write_bytes((home / "key2.pub").read_bytes())
    says(plain(sshd))
    (home / ".ssh" / "config").write_text(f"IdentityAgent {agent}\n")
    os.environ.pop("SSH_AUTH_SOCK")
    says(plain(sshd))
    (home / ".ssh" / "config").write_text(f"IdentityAgent {agent}\nIdentitiesOnly yes\n")
    assert "there is no key to try" in refusal(plain(sshd))
    (home / ".ssh" / "config").write_text("IdentityAgent none\n")
    assert "there is no key to try" in refusal(plain(sshd))


def test_too_many_keys(sshd: Sshd, agent: Path, home: Path, authorized: Path) -> None:
    for number in range(8):
        make_key(home / f"key{number}")
        add_key(home / f"key{number}")
    authorized.write_bytes((home / "key7.pub").read_bytes())
    assert "too many keys: give target.key_file" in refusal(plain(sshd))
    says(plain(sshd, key_file=str(home / "key7")))


def test_an_agent_that_is_gone(sshd: Sshd, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "gone"))
    assert f"the agent at {home}/gone does not answer" in refusal(plain(sshd))
    shutil.copy(sshd.key, home / ".ssh" / "id_ed25519")
    says(plain(sshd))


def test_a_key_that_is_not_let_in(sshd: Sshd, home: Path) -> None:
    make_key(home / ".ssh" / "id_ed25519")
    text = refusal(plain(sshd))
    assert f"@127.0.0.1:{sshd.port}: cannot log in; tried {home}/.ssh/id_ed25519; put" in text
    (home / "junk").write_text("no key\n")
    assert "junk is no private key" in refusal(plain(sshd, key_file=str(home / "junk")))


def test_a_server_that_takes_no_keys(tmp_path: Path) -> None:
    machine = Sshd(tmp_path, settings="PubkeyAuthentication no\nPasswordAuthentication yes")
    machine.start()
    try:
        assert "accepts no keys, only password" in refusal(machine.config())
        machine.stop()
        machine.configure(
            "AuthenticationMethods publickey,keyboard-interactive\nKbdInteractiveAuthentication yes"
        )
        machine.start()
        assert "wants keyboard-interactive as well" in refusal(machine.config())
    finally:
        machine.stop()


@pytest.mark.parametrize(
    ("command", "reason", "patience_s"),
    [
        ('sh -c "kill -9 $(ps -o ppid= $PPID) $PPID"', "ended it", 60.0),
        ("sleep 20", "does not answer", 5.0),
    ],
)
def test_a_connection_that_ends_while_logging_in(
    tmp_path: Path, command: str, reason: str, patience_s: float
) -> None:
    """That is no refusal: it may work the next time."""
    if os.geteuid() != 0:
        pytest.skip("sshd runs such commands only for root")
    program, rest = command.split(" ", 1)
    path = shutil.which(program)  # as sshd wants it
    machine = Sshd(
        tmp_path, settings=f"AuthorizedKeysCommand {path} {rest}\nAuthorizedKeysCommandUser root"
    ).start()
    machine.authorized_keys.write_text("")
    try:
        assert reason in refusal(machine.config(connect_timeout_s=patience_s), LinkLost)
    finally:
        machine.stop()


def test_an_unknown_host_key(sshd: Sshd, home: Path) -> None:
    known = home / ".ssh" / "known_hosts"
    known.unlink()
    text = refusal(plain(sshd, key_file=str(sshd.key)), HostKeyRefused)
    assert f"[127.0.0.1]:{sshd.port}: its ed25519 host key SHA256:" in text
    told = subprocess.run(
        ["ssh-keygen", "-lf", sshd.host_key("ed25519")], check=True, capture_output=True, text=True
    ).stdout.split()[1]
    assert told in text
    command = text.rpartition("add it: ")[2]
    assert command.startswith(f"ssh-keyscan -p {sshd.port} -t ed25519 127.0.0.1 >> ")
    subprocess.run(["sh", "-c", command], check=True, stderr=subprocess.DEVNULL)
    says(plain(sshd, key_file=str(sshd.key)))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", known], check=True, capture_output=True)
    says(plain(sshd, key_file=str(sshd.key)))


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_any_known_key_will_do(sshd: Sshd, home: Path, kind: str) -> None:
    (home / ".ssh" / "known_hosts").write_text(sshd.known_line(kind))
    says(plain(sshd, key_file=str(sshd.key)))


def test_a_changed_host_key(sshd: Sshd, home: Path) -> None:
    other = home / "other"
    make_key(other)
    kind, key = Path(f"{other}.pub").read_text().split()[:2]
    known = home / ".ssh" / "known_hosts"
    known.write_text(f"[127.0.0.1]:{sshd.port} {kind} {key}\n")
    text = refusal(plain(sshd, key_file=str(sshd.key)), HostKeyRefused)
    assert "has changed" in text
    assert "the next run then prints the command that adds the new one" in text
    command = text.rpartition("To remove: ")[2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert known.read_text() == ""
    text = refusal(plain(sshd, key_file=str(sshd.key)), HostKeyRefused)
    subprocess.run(["sh", "-c", text.rpartition("add it: ")[2]], check=True, capture_output=True)
    says(plain(sshd, key_file=str(sshd.key)))


def test_a_revoked_host_key(sshd: Sshd, home: Path) -> None:
    with (home / ".ssh" / "known_hosts").open("a") as f:
        f.write(f"@revoked {sshd.known_line('ed25519', '*')}")
    assert "is revoked" in refusal(plain(sshd, key_file=str(sshd.key)), HostKeyRefused)


def test_a_host_key_that_changes_between_connections(tmp_path: Path) -> None:
    """Reconnecting is refused for good, not tried again."""
    machine = Sshd(tmp_path).start()
    link = SshLink(machine.config())
    try:
        machine.stop()
        machine.host_key("ed25519").unlink()
        Path(f"{machine.host_key('ed25519')}.pub").unlink()
        make_key(machine.host_key("ed25519"))
        machine.start()
        with pytest.raises(HostKeyRefused, match="has changed") as e:
            link.reconnect()
        assert not isinstance(e.value, LinkLost)
        with pytest.raises(LinkLost):
            link.call(["true"], timeout_s=5)
    finally:
        link.close()
        machine.stop()


def test_the_configuration_file(sshd: Sshd, home: Path) -> None:
    shutil.copy(sshd.known_hosts, home / "known")
    (home / ".ssh" / "known_hosts").unlink()
    (home / ".ssh" / "config").write_text(
        f"Include more\nHost board\n HostName 127.0.0.1\n IdentityFile {sshd.key}\n"
        " StrictHostKeyChecking no\n UserKnownHostsFile ~/absent ~/known\n"
    )
    (home / ".ssh" / "more").write_text(f"Host b*\n Port {sshd.port}\n")
    says(plain(sshd, host="board", port=None))
    (home / "known").unlink()
    refusal(plain(sshd, host="board", port=None), HostKeyRefused)


def test_an_alias_of_the_host_key(sshd: Sshd, home: Path) -> None:
    (home / ".ssh" / "config").write_text(f"HostKeyAlias board\nIdentityFile {sshd.key}\n")
    text = refusal(plain(sshd), HostKeyRefused)
    subprocess.run(["sh", "-c", text.rpartition("add it: ")[2]], check=True)
    says(plain(sshd))
    known = (home / ".ssh" / "known_hosts").read_text().splitlines()[-1]
    assert known.startswith("board ssh-ed25519 ")


def test_over_jump_hosts(sshd: Sshd, home: Path, tmp_path: Path) -> None:
    """Two on the way, each with a host key and a login of its own."""
    first = Sshd(tmp_path / "first").start()
    second = Sshd(tmp_path / "second").start()
    try:
        known = home / ".ssh" / "known_hosts"
        (home / ".ssh" / "config").write_text(
            f"Host first\n HostName 127.0.0.1\n Port {first.port}\n IdentityFile {first.key}\n"
            f"Host second\n HostName 127.0.0.1\n Port {second.port}\n IdentityFile {second.key}\n"
            f"Host board\n HostName 127.0.0.1\n Port {sshd.port}\n IdentityFile {sshd.key}\n"
            " ProxyJump first,second\n"
        )
        config = plain(sshd, host="board", port=None)
        for machine in (first, second):
            text = refusal(config, HostKeyRefused)
            assert text.startswith(f"[127.0.0.1]:{machine.port}: ")
            known.write_text(known.read_text() + machine.known_line("ed25519"))
        link = SshLink(config)
        data = os.urandom(5 << 20)
        assert link.call(["cat"], timeout_s=600, stdin=data).stdout == data
        (tmp_path / "file").write_bytes(data)
        link.put(tmp_path / "file", str(tmp_path / "there"))
        assert (tmp_path / "there").read_bytes() == data
        second.kill()
        with pytest.raises(LinkLost):
            link.call(["true"], timeout_s=10)
        with pytest.raises(LinkLost, match=f"{second.port} over the jump host"):
            link.reconnect()
        second.start()
        link.reconnect()
        assert link.call(["echo", "x"], timeout_s=120).stdout == b"x\n"
        link.close()
        known.write_text("".join(m.known_line("ed25519") for m in (first, second)))
        text = refusal(config, HostKeyRefused)
        subprocess.run(["sh", "-c", text.rpartition("add it: ")[2]], check=True)
        says(config)
        first.kill()
        refusal(config, LinkLost)
    finally:
        first.stop()
        second.stop()


def test_a_jump_host_that_does_not_let_us_in(sshd: Sshd, home: Path, tmp_path: Path) -> None:
    """It is named, and what would help is not the target's key."""
    jump = Sshd(tmp_path / "jump").start()
    try:
        known = home / ".ssh" / "known_hosts"
        known.write_text(known.read_text() + jump.known_line("ed25519"))
        user = getpass.getuser()
        config = plain(sshd, key_file=str(sshd.key), proxy_jump=f"127.0.0.1:{jump.port}")
        text = refusal(config, LoginRefused)
        assert text.startswith(f"the jump host {user}@127.0.0.1:{jump.port}: cannot log in; tried ")
        assert "an IdentityFile for Host 127.0.0.1 in ~/.ssh/config, or the agent: ssh-add" in text
        assert "target.key_file is not used for jump hosts" in text
        assert "or give target.key_file" not in text
        bare = refusal(dataclasses.replace(config, ssh_config=None), LoginRefused)
        assert "give the key by the agent: ssh-add FILE" in bare
        (home / ".ssh" / "config").write_text(
            f"Host gate\n HostName 127.0.0.1\n Port {jump.port}\n"
        )
        config = plain(sshd, key_file=str(sshd.key), proxy_jump="gate")
        text = refusal(config, LoginRefused)
        assert text.startswith(f"the jump host gate ({user}@127.0.0.1:{jump.port}): cannot log in")
        with (home / ".ssh" / "config").open("a") as f:  # as told
            f.write(f" IdentityFile {jump.key}\n")
        says(config)
    finally:
        jump.stop()


def test_too_many_keys_for_a_jump_host(sshd: Sshd, agent: Path, home: Path, tmp_path: Path) -> None:
    for number in range(8):
        make_key(home / f"key{number}")
        add_key(home / f"key{number}")
    jump = Sshd(tmp_path / "jump").start()
    try:
        known = home / ".ssh" / "known_hosts"
        known.write_text(known.read_text() + jump.known_line("ed25519"))
        config = plain(sshd, key_file=str(sshd.key), proxy_jump=f"127.0.0.1:{jump.port}")
        text = refusal(config, LoginRefused)
        assert "too many keys: give IdentityFile with IdentitiesOnly yes for Host 127.0" in text
        bare = refusal(dataclasses.replace(config, ssh_config=None), LoginRefused)
        assert "too many keys: keep fewer in the agent" in bare
    finally:
        jump.stop()


def test_over_a_command(sshd: Sshd, home: Path) -> None:
    relay = home / "relay.py"
    relay.write_text(
        "import os, select, socket, sys\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "while True:\n"
        "    ready, _, _ = select.select([0, s], [], [])\n"
        "    for one, read, write in ((0, lambda: os.read(0, 65536), s.sendall),\n"
        "        (s, lambda: s.recv(65536), lambda d: os.write(1, d))):\n"
        "        if one in ready:\n"
        "            data = read()\n"
        "            if not data: sys.exit()\n"
        "            write(data)\n"
    )
    (home / ".ssh" / "config").write_text(
        f"Host board\n HostName 127.0.0.1\n Port {sshd.port}\n IdentityFile {sshd.key}\n"
        f" ProxyCommand {sys.executable} {relay} %h %p\n"
    )
    says(plain(sshd, host="board", port=None))
    (home / ".ssh" / "config").write_text("ProxyCommand sh -c 'echo no way >&2; exit 1'\n")
    assert "(no way)" in refusal(plain(sshd), LinkLost)


def test_ipv6(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on loopback")
    machine = Sshd(tmp_path, address="::1")
    machine.start()
    try:
        says(machine.config())
        machine.known_hosts.write_text("")
        text = refusal(machine.config(), HostKeyRefused)
        assert text.startswith(f"[::1]:{machine.port}: ")
        subprocess.run(["sh", "-c", text.rpartition("add it: ")[2]], check=True)
        says(machine.config(host=f"[::1]:{machine.port}", port=None))
    finally:
        machine.stop()


def test_nobody_there(sshd: Sshd) -> None:
    port = free_port()
    text = refusal(sshd.config(port=port), LinkLost)
    assert text == f"cannot connect to 127.0.0.1:{port}: connection refused"
    text = refusal(sshd.config(host="no-such-host.invalid", port=None), LinkLost)
    assert "no-such-host.invalid:22: the name is not known" in text


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-1.5-old\r\n", b"", b"SSH-2.0-hung\r\n"]
)
def test_somebody_else_there(sshd: Sshd, greeting: bytes) -> None:
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.sendall(greeting)
            if b"SSH-2" not in greeting and greeting:
                connection.close()
            else:  # says nothing more, and does not go away
                over.wait(120)
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        started = time.monotonic()
        port = server.getsockname()[1]
        text = refusal(sshd.config(port=port, connect_timeout_s=2.0))
        assert time.monotonic() - started < 60
        over.set()
        assert f"127.0.0.1:{port}" in text
        thread.join()


def test_fingerprints_are_those_of_openssh(sshd: Sshd) -> None:
    import base64

    data = base64.b64decode(Path(f"{sshd.host_key('rsa')}.pub").read_text().split()[1])
    told = subprocess.run(
        ["ssh-keygen", "-lf", sshd.host_key("rsa")], check=True, capture_output=True, text=True
    ).stdout
    assert fingerprint(data) == told.split()[1]


def test_nothing_is_said_elsewhere(sshd: Sshd, tmp_path: Path) -> None:
    """Whatever goes wrong within paramiko's threads, nothing reaches the terminal."""
    machine = Sshd(tmp_path / "one").start()
    program = tmp_path / "program.py"
    program.write_text(f"""
import os, signal, sys, time
from harness.errors import DeviceError
from harness.target_config import SshConfig
from harness.targets.ssh import SshLink

sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from ssh_parts import sshds_below

link = SshLink({machine.config()!r})
channel = link.open(["cat"])
for pid in sshds_below({machine.sessions()[0]}):
    os.kill(pid, signal.SIGKILL)
time.sleep(0.5)

def call(): link.call(["true"], timeout_s=5)
def send(): channel.send(b"x")

for attempt in (call, link.reconnect, send):
    try:
        attempt()
    except DeviceError as e:
        print(type(e).__name__)
""")
    try:
        done = subprocess.run([sys.executable, program], check=False, capture_output=True)
    finally:
        machine.stop()
    assert done.stderr == b""
    assert done.stdout == b"LinkLost\n" * 3


def test_a_missing_configuration_is_a_usage_error(sshd: Sshd, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        SshLink(sshd.config(ssh_config=str(tmp_path / "absent")))
