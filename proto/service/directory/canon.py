"""Canonical JSON: sorted keys, no spaces, ASCII, integers and strings.

Rows and messages of the directory have this form. Stations that hold the same value hold the same bytes, whatever their Python
version or locale.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NoReturn

INT_MAX: Final = (1 << 64) - 1
"""Integers are 0 to this."""


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text[:20]!r} is no integer")


_encoder: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
_decoder: Final = json.JSONDecoder(parse_float=_refuse, parse_constant=_refuse)


def _text_maker() -> Callable[[object], str]:
    """``_encoder.encode``; where the interpreter has its C part, without the one that ``encode`` makes anew for each value."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return _encoder.encode
    parts = make(None, _encoder.default, json.encoder.encode_basestring_ascii, None, ":", ",", True, False, False)
    return lambda value: "".join(parts(value, 0))


_text: Final = _text_maker()


def encode(value: object) -> bytes:
    """The one encoding of a value made of objects, lists, text and integers."""
    return _text(value).encode("ascii")


def load(data: bytes) -> dict[str, Any]:
    """An object in JSON without fractions. Raises ValueError. It accepts more than ``encode`` makes: spaces within, a key twice,
    truth values. A caller that reads received data checks each member and compares the encodings."""
    text = data.decode("ascii")
    try:
        value, end = _decoder.raw_decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if end != len(text):
        raise ValueError("data after the object")
    if type(value) is not dict:
        raise ValueError("no object")
    return value
