"""Who may connect: the host signs a token with an RSA key of which we know the public half."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import NamedTuple

TOKEN, SIGNATURE, PUBLIC_KEY = 1, 2, 3
TOKEN_BYTES = 20
_MODULUS_BYTES = 256
# DigestInfo of SHA-1 in PKCS #1 (RFC 8017, 9.2): the token is signed as if it were such a hash
_SHA1_INFO = bytes.fromhex("3021300906052b0e03021a05000414")


class Key(NamedTuple):
    modulus: int
    exponent: int


def read_public_key(text: str) -> Key:
    """`adbkey.pub`: base64 of a structure, and then a name. Raises ValueError."""
    try:
        raw = base64.b64decode(text.split(maxsplit=1)[0], validate=True)
        words, _, modulus, _, exponent = struct.unpack(
            f"<II{_MODULUS_BYTES}s{_MODULUS_BYTES}sI", raw
        )
    except (IndexError, struct.error, binascii.Error) as e:
        raise ValueError(f"no public key of adb: {e}") from e
    if words * 4 != _MODULUS_BYTES:
        raise ValueError(f"a key of {words * 32} bits, not of 2048")
    return Key(int.from_bytes(modulus, "little"), exponent)


def signed_by(key: Key, token: bytes, signature: bytes) -> bool:
    tail = b"\x00" + _SHA1_INFO + token
    expected = b"\x00\x01" + b"\xff" * (_MODULUS_BYTES - 2 - len(tail)) + tail
    opened = pow(int.from_bytes(signature, "big"), key.exponent, key.modulus)
    return len(signature) == _MODULUS_BYTES and opened.to_bytes(_MODULUS_BYTES, "big") == expected
