"""known_hosts: which entries speak of a host, and what becomes of an offered key."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.targets.ssh_known import (
    HostKeyRefused,
    Server,
    check_key,
    fingerprint,
    known_types,
    read_known,
)

KEY, OTHER = b"\0\0\0\x0bssh-ed25519-one", b"\0\0\0\x0bssh-ed25519-two"
ED, RSA = "ssh-ed25519", "ssh-rsa"


def b64(key: bytes) -> str:
    return base64.b64encode(key).decode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known hosts"


def check(
    file: Path,
    text: str,
    *,
    host: str = "dev",
    port: int = 22,
    alias: str | None = None,
    key: bytes = KEY,
    kind: str = ED,
    direct: bool = True,
) -> None:
    file.write_text(text)
    check_key(read_known([file]), [file], Server(host, port, alias, direct), kind, key)


@pytest.mark.parametrize(
    ("line", "host", "port"),
    [
        ("dev", "dev", 22),
        ("DEV", "dev", 22),
        ("dev", "Dev", 22),
        ("a,dev,b", "dev", 22),
        ("[dev]:2222", "dev", 2222),
        ("dev", "dev", 2222),  # known for every port, as for ssh
        ("d?v", "dev", 22),
        ("*.lan,!bad.lan", "good.lan", 22),
        ("[*.lan]:2222", "x.lan", 2222),
        ("::1", "::1", 22),
        ("[::1]:2222", "::1", 2222),
    ],
)
def test_known(file: Path, line: str, host: str, port: int) -> None:
    check(file, f"# comment\n\n{line} {ED} {b64(KEY)} a comment\n", host=host, port=port)


@pytest.mark.parametrize(
    ("line", "host", "port"),
    [
        ("dev2", "dev", 22),
        ("[dev]:2222", "dev", 22),
        ("[dev]:2222", "dev", 2223),
        ("*.lan,!bad.lan", "bad.lan", 22),
        ("[d]ev", "dev", 22),
        ("d.v", "dev", 22),
        ("|1|bad|bad", "dev", 22),
        ("|1|bad", "dev", 22),
    ],
)
def test_unknown(file: Path, line: str, host: str, port: int) -> None:
    with pytest.raises(HostKeyRefused, match="is not in"):
        check(file, f"{line} {ED} {b64(KEY)}\n", host=host, port=port)


def test_an_unknown_key_is_refused_with_the_command_that_adds_it(file: Path) -> None:
    with pytest.raises(HostKeyRefused) as e:
        check(file, "", port=2222)
    text = str(e.value)
    assert text.startswith(f"[dev]:2222: its ed25519 host key {fingerprint(KEY)} is not in {file}")
    assert f"ssh-keyscan -p 2222 -t ed25519 dev >> '{file}'" in text
    assert "\n" not in text


def test_the_command_makes_the_directory(tmp_path: Path) -> None:
    file = tmp_path / "new dir" / "known_hosts"
    with pytest.raises(HostKeyRefused, match=f"add it: mkdir -p '{tmp_path}/new dir' && ssh-key"):
        check_key([], [file], Server("dev", 22, None, True), ED, KEY)


@pytest.mark.parametrize(
    ("alias", "direct", "name"), [(None, False, "[dev]:2222"), ("al", True, "al")]
)
def test_the_command_where_keyscan_does_not_reach(
    file: Path, alias: str | None, direct: bool, name: str
) -> None:
    with pytest.raises(HostKeyRefused) as e:
        check(file, "", port=2222, alias=alias, direct=direct)
    command = str(e.value).rpartition("add it: ")[2]
    subprocess.run(["sh", "-c", command], check=True)
    check_key(read_known([file]), [file], Server("dev", 2222, alias, direct), ED, KEY)
    assert file.read_text() == f"{name} {ED} {b64(KEY)}\n"


def test_a_changed_key_is_refused_with_both_fingerprints(file: Path) -> None:
    with pytest.raises(HostKeyRefused) as e:
        check(file, f"\n[dev]:2222 {ED} {b64(OTHER)}\n", port=2222)
    text = str(e.value)
    assert "has changed" in text
    assert f"{file}, line 2" in text
    assert fingerprint(KEY) in text
    assert fingerprint(OTHER) in text
    assert f"ssh-keygen -f '{file}' -R '[dev]:2222'" in text
    assert "\n" not in text


def test_a_key_known_without_port_is_no_changed_key_of_another_port(file: Path) -> None:
    with pytest.raises(HostKeyRefused, match="is not in"):
        check(file, f"dev {ED} {b64(OTHER)}\n", port=2222)


def test_a_key_of_another_type_is_told(file: Path) -> None:
    with pytest.raises(HostKeyRefused, match="known by another key: rsa"):
        check(file, f"dev {RSA} {b64(OTHER)}\n")


def test_one_of_several_keys_is_enough(file: Path) -> None:
    check(file, f"dev {ED} {b64(OTHER)}\ndev {ED} {b64(KEY)}\n")


def test_a_revoked_key_is_refused_though_it_is_known_too(file: Path) -> None:
    text = f"dev {ED} {b64(KEY)}\n@revoked * {ED} {b64(KEY)}\n"
    with pytest.raises(HostKeyRefused, match=r"revoked.*line 2"):
        check(file, text)
    check(file, f"dev {ED} {b64(KEY)}\n@revoked * {ED} {b64(OTHER)}\n")


def test_an_authority_is_told_and_does_not_vouch(file: Path) -> None:
    with pytest.raises(HostKeyRefused, match="certificates are not supported"):
        check(file, f"@cert-authority *.lan {ED} {b64(KEY)}\n", host="x.lan")


def test_an_alias_stands_for_host_and_port(file: Path) -> None:
    check(file, f"al {ED} {b64(KEY)}\n", port=2222, alias="al")
    with pytest.raises(HostKeyRefused):
        check(file, f"[dev]:2222 {ED} {b64(KEY)}\n", port=2222, alias="al")


def test_known_types_come_best_first(file: Path) -> None:
    file.write_text(
        f"dev {RSA} {b64(KEY)}\ndev {ED} {b64(KEY)}\ndev ssh-dss {b64(KEY)}\n"
        f"@revoked dev ecdsa-sha2-nistp256 {b64(KEY)}\n"
    )
    assert known_types(read_known([file]), Server("dev", 22, None, True)) == [ED, RSA]


@pytest.mark.parametrize("port", [22, 2222])
def test_hashed_by_openssh(file: Path, port: int) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen")
    name = "dev" if port == 22 else f"[dev]:{port}"
    key = file.parent / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    kind, data = Path(f"{key}.pub").read_text().split()[:2]
    file.write_text(f"{name} {kind} {data}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    text = file.read_text()
    assert text.startswith("|1|")
    check(file, text, port=port, key=base64.b64decode(data))
    with pytest.raises(HostKeyRefused):
        check(file, text, host="other", port=port, key=base64.b64decode(data))
    told = subprocess.run(
        ["ssh-keygen", "-l", "-f", f"{key}.pub"], check=True, capture_output=True, text=True
    ).stdout
    assert told.split()[1] == fingerprint(base64.b64decode(data))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the known host keys"):
        read_known([tmp_path])
    assert read_known([tmp_path / "absent"]) == []


@given(st.binary(max_size=300))
def test_any_file_can_be_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_bytes(content)
    with pytest.raises(HostKeyRefused):
        check_key(read_known([file]), [file], Server("dev", 2222, None, True), ED, KEY)
