"""Whom to log in to: the configuration, and OpenSSH's configuration file as ssh itself reads it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.target_config import SshConfig
from harness.targets.ssh_config_file import read_config_text
from harness.targets.ssh_hosts import Hop, route


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "me")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def config(host: str, **changes: object) -> SshConfig:
    base = SshConfig(
        kind="ssh",
        host=host,
        name=None,
        port=None,
        user=None,
        key_file=None,
        known_hosts=None,
        ssh_config="~/.ssh/config",
        proxy_jump=None,
        dir="dir",
        device_lock=None,
        connect_timeout_s=20.0,
        lease_s=20.0,
        reconnect_s=300.0,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def hop(home: Path, text: str, host: str = "dev", **changes: object) -> Hop:
    (home / ".ssh" / "config").write_text(text)
    (found,) = route(config(host, **changes))
    return found


def test_without_a_configuration_file(home: Path) -> None:
    (found,) = route(config("dev"))
    assert (found.host, found.port, found.user) == ("dev", 22, "me")
    ssh = home / ".ssh"
    assert found.known_files[:2] == (ssh / "known_hosts", ssh / "known_hosts2")
    assert found.default_keys == (ssh / "id_ed25519", ssh / "id_ecdsa", ssh / "id_rsa")
    assert found.key_files == ()


def test_a_configuration_file_that_was_asked_for_must_be_there(home: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the ssh configuration"):
        route(config("dev", ssh_config=str(home / "absent")))


def test_our_own_keys_go_before_the_file(home: Path) -> None:
    (home / "key").write_text("")
    text = "Host dev\n HostName box.lan\n User her\n Port 2222\n IdentityFile ~/other\n"
    found = hop(home, text, user="me2", port=23, key_file="~/key", known_hosts="~/known")
    assert (found.host, found.port, found.user) == ("box.lan", 23, "me2")
    assert found.key_files == (home / "key",)
    assert found.only_named_keys
    assert found.known_files == (home / "known",)


def test_a_key_file_must_be_there(home: Path) -> None:
    with pytest.raises(UsageError, match=r"target.key_file: .*/key is not there"):
        route(config("dev", key_file="~/key"))


def test_a_key_file_is_a_file(home: Path) -> None:
    with pytest.raises(UsageError, match=r"key_file: .*/\.ssh is a directory; .*\.ssh/id_ed25519"):
        route(config("dev", key_file="~/.ssh"))
    os.mkfifo(home / "fifo")
    with pytest.raises(UsageError, match=r"target.key_file: .*/fifo is no regular file"):
        route(config("dev", key_file="~/fifo"))
    (home / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/key cannot be used: Not a directory"):
        route(config("dev", key_file="~/file/key"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("dev", ("dev", 22, "me")),
        ("her@dev", ("dev", 22, "her")),
        ("dev:2222", ("dev", 2222, "me")),
        ("ssh://her@dev:2222", ("dev", 2222, "her")),
        ("::1", ("::1", 22, "me")),
        ("[::1]:2222", ("::1", 2222, "me")),
        ("a@b@dev", ("dev", 22, "a@b")),
    ],
)
def test_names_of_hosts(home: Path, host: str, expected: tuple[str, int, str]) -> None:
    (found,) = route(config(host))
    assert (found.host, found.port, found.user) == expected


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "", "@", "a b", "dev:", "dev:x", "dev:99999"])
def test_no_hosts(home: Path, host: str) -> None:
    with pytest.raises(UsageError, match=r"target.host"):
        route(config(host))


def test_a_port_given_twice(home: Path) -> None:
    with pytest.raises(UsageError, match="give it once"):
        route(config("dev:2222", port=22))


def names(hops: list[Hop]) -> list[tuple[str, str, int]]:
    return [(hop.user, hop.host, hop.port) for hop in hops]


def test_jump_hosts_in_order(home: Path) -> None:
    (home / ".ssh" / "config").write_text(
        "Host dev\n HostName box.lan\n ProxyJump a, her@b:24\n"
        "Host a\n HostName a.lan\n Port 23\n ProxyJump first\n"
        "Host b\n User nobody\n ProxyJump unused\n"
    )
    expected = [("me", "first", 22), ("me", "a.lan", 23), ("her", "b", 24), ("me", "box.lan", 22)]
    assert names(route(config("dev"))) == expected
    assert names(route(config("dev", proxy_jump="none"))) == [("me", "box.lan", 22)]
    assert names(route(config("dev", proxy_jump="x"))) == [("me", "x", 22), ("me", "box.lan", 22)]


def test_our_key_is_for_the_target_only(home: Path) -> None:
    (home / "key").write_text("")
    jump, target = route(config("dev", proxy_jump="a", key_file="~/key", known_hosts="~/known"))
    assert jump.key_files == ()
    assert target.key_files == (home / "key",)
    assert (jump.is_jump, target.is_jump) == (True, False)
    assert jump.known_files == target.known_files == (home / "known",)


def test_jump_hosts_in_a_ring(home: Path) -> None:
    (home / ".ssh" / "config").write_text("Host *\n ProxyJump a\n")
    with pytest.raises(UsageError, match="ring"):
        route(config("dev"))


def test_host_keys_are_always_checked(home: Path) -> None:
    text = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nGlobalKnownHostsFile none\n"
    assert hop(home, text).known_files == ()


def test_several_known_hosts(home: Path) -> None:
    found = hop(home, 'UserKnownHostsFile ~/a "~/b c"\nGlobalKnownHostsFile /x\n')
    assert found.known_files == (home / "a", home / "b c", Path("/x"))


@pytest.mark.parametrize(
    "text",
    [
        "ProxyUseFdpass yes\n",
        "KnownHostsCommand /bin/x\n",
        "PubkeyAuthentication no\n",
        "IdentityAgent $OTHER\n",
        "Port x\n",
        'UserKnownHostsFile "a\n',
        "Match nonsense x\n",
        "Match host dev exec true\n",
        "Match host dev,de* !localnetwork 10.0.0.0/8\n",
        "Host a\nInclude more\n",
    ],
)
def test_what_is_not_supported_is_refused(home: Path, text: str) -> None:
    (home / ".ssh" / "more").write_text("Host b\nPort 3\n")
    with pytest.raises(UsageError) as e:
        hop(home, text)
    assert "\n" not in str(e.value)


def test_an_include_within_itself(home: Path) -> None:
    with pytest.raises(UsageError, match="ring"):
        hop(home, "Include config\n")


def test_agents(home: Path) -> None:
    assert hop(home, "IdentityAgent ~/agent.sock\n").agent == str(home / "agent.sock")
    assert hop(home, "IdentityAgent none\n").agent == ""
    assert hop(home, "IdentityAgent SSH_AUTH_SOCK\n").agent is None
    assert hop(home, "").agent is None


def test_the_shorter_time_holds(home: Path) -> None:
    assert hop(home, "ConnectTimeout 5\n").connect_timeout_s == 5
    assert hop(home, "ConnectTimeout 50\n").connect_timeout_s == 20
    assert hop(home, "ConnectTimeout none\n").connect_timeout_s == 20


def test_a_command_in_place_of_the_network(home: Path) -> None:
    text = "Host dev\n HostName box\n Port 23\n ProxyCommand nc -X 5 '%h' %p\n"
    assert hop(home, text).proxy_command == "nc -X 5 'box' 23"
    assert hop(home, "Host dev\n ProxyCommand none\n").proxy_command is None
    # the first of the two counts, and a jump host of our own always
    both = "Host dev\n ProxyCommand x\n ProxyJump a\n"
    assert hop(home, both).proxy_command == "x"
    (home / ".ssh" / "config").write_text("Host dev\n ProxyCommand x\n")
    assert [h.proxy_command for h in route(config("dev", proxy_jump="a"))] == [None, None]


CONFIGURATIONS = [
    "Host dev\n HostName box.lan\n User her\n Port 2222\n",
    "Host other\n Port 1\nHost d*v !devil\n Port 2\nHost *\n Port 3\n User all\n",
    "Host=dev\n Port=2222\n User = her\n",
    'Host "dev"\n User "her name"\n',
    "Host dev # mine\n Port 2222 # not 22\n#Port 1\n User a#b\n",
    "Port 2222\nHost dev\n Port 3\n",
    "Match host dev\n Port 5\nMatch all\n User z\n",
    "Match originalhost dev user nobody\n Port 5\n",
    "Include more/*\nHost dev\n Port 9\n",
    "Host dev\n User x\nInclude plain\nHost *\n Port 7\n",
    "Include more/a absent more/b\nPort 11\n",
    "Host dev\n HostName %h.lan\n",
    "Host dev\n ProxyJump her@jump:23\n",
    "Host dev\n HostKeyAlias known\n",
]


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_read_as_by_ssh(home: Path, text: str) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("no ssh")
    # ssh looks for what is included in the home of passwd, so those are named in full
    ssh = home / ".ssh"
    (ssh / "more").mkdir()
    (ssh / "more" / "a").write_text("Host dev\n User from_a\nHost nobody\n Port 77\n")
    (ssh / "more" / "b").write_text("User from_b\n")
    (ssh / "plain").write_text("Port 4242\n")
    text = text.replace("Include ", f"Include {ssh}/").replace(" more/b", f" {ssh}/more/b")
    text = text.replace(" absent", f" {ssh}/absent")
    file = ssh / "config"
    file.write_text(text)
    told = subprocess.run(
        ["ssh", "-G", "-F", file, "dev"], check=True, capture_output=True, text=True
    ).stdout
    said = dict(line.split(" ", 1) for line in told.splitlines() if " " in line)
    *jumps, found = route(config("dev", ssh_config=str(file)))
    assert found.host == said["hostname"]
    assert str(found.port) == said["port"]
    me = subprocess.run(["id", "-un"], check=True, capture_output=True, text=True).stdout.strip()
    assert found.user == ("me" if said["user"] == me else said["user"])
    assert found.alias == said.get("hostkeyalias")
    assert len(jumps) == ("proxyjump" in said)


def test_includes_of_the_home(home: Path) -> None:
    (home / ".ssh" / "more").write_text("Host dev\n Port 5\n")
    assert hop(home, "Include more\n").port == 5
    assert hop(home, "Include ~/.ssh/mo*\nHost *\n Port 6\n").port == 5
    text = read_config_text(home / ".ssh" / "config")
    assert text == "Host dev\n Port 5\nHost *\nHost *\n Port 6"
