"""AES-256-GCM as FIPS 197 and NIST SP 800-38D write it, byte by byte: slow, and independent of libcrypto."""

from __future__ import annotations


def _times(a: int, b: int) -> int:
    """Product in the field of AES."""
    out = 0
    while b:
        if b & 1:
            out ^= a
        a = a << 1 ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return out


def _substitution() -> bytes:
    out = bytearray(256)
    for value in range(256):
        inverse = next((i for i in range(256) if _times(value, i) == 1), 0)
        out[value] = 0x63
        for turn in range(5):
            out[value] ^= (inverse << turn | inverse >> 8 - turn) & 0xFF
    return bytes(out)


_BOX = _substitution()


def _round_keys(key: bytes) -> list[bytes]:
    words = [key[i : i + 4] for i in range(0, 32, 4)]
    constant = 1
    while len(words) < 60:
        word = words[-1]
        if len(words) % 8 == 0:
            word = bytes(_BOX[b] for b in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant = _times(constant, 2)
        elif len(words) % 8 == 4:
            word = bytes(_BOX[b] for b in word)
        words.append(bytes(a ^ b for a, b in zip(word, words[-8], strict=True)))
    return [b"".join(words[i : i + 4]) for i in range(0, 60, 4)]


def _block(keys: list[bytes], block: bytes) -> bytes:
    state = bytes(a ^ b for a, b in zip(block, keys[0], strict=True))
    for number, key in enumerate(keys[1:], 1):
        boxed = bytes(_BOX[b] for b in state)
        shifted = bytes(boxed[(i + 4 * (i % 4)) % 16] for i in range(16))
        if number < len(keys) - 1:
            mixed = bytearray()
            for column in range(0, 16, 4):
                c = shifted[column : column + 4]
                for row in range(4):
                    mixed.append(_times(c[row], 2) ^ _times(c[(row + 1) % 4], 3) ^ c[(row + 2) % 4] ^ c[(row + 3) % 4])
            shifted = bytes(mixed)
        state = bytes(a ^ b for a, b in zip(shifted, key, strict=True))
    return state


def _hash(h: int, data: bytes) -> int:
    y = 0
    for at in range(0, len(data), 16):
        x, z = y ^ int.from_bytes(data[at : at + 16].ljust(16, b"\0"), "big"), 0
        v = h
        for bit in range(127, -1, -1):
            if x >> bit & 1:
                z ^= v
            v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
        y = z
    return y


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def seal(key: bytes, nonce: bytes, associated: bytes, text: bytes) -> tuple[bytes, bytes]:
    """(hidden text, tag of 16 bytes). key: 32 bytes; nonce: 12."""
    keys = _round_keys(key)
    h = int.from_bytes(_block(keys, bytes(16)), "big")
    hidden = bytearray()
    for number, at in enumerate(range(0, len(text), 16), 2):
        stream = _block(keys, nonce + number.to_bytes(4, "big"))
        hidden += bytes(a ^ b for a, b in zip(text[at : at + 16], stream, strict=False))
    lengths = (8 * len(associated)).to_bytes(8, "big") + (8 * len(hidden)).to_bytes(8, "big")
    sum_ = _hash(h, _padded(associated) + _padded(bytes(hidden)) + lengths)
    first = int.from_bytes(_block(keys, nonce + (1).to_bytes(4, "big")), "big")
    return bytes(hidden), (sum_ ^ first).to_bytes(16, "big")
