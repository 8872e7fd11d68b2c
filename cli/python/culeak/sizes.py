"""Sizes in bytes as people write and read them, in the same format as the command's."""

import re
from typing import Union

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS[_letter] = _UNITS[_letter + "ib"] = 1024**_power
    _UNITS[_letter + "b"] = 1000**_power


class Size(int):
    """Bytes, with the text that says how many."""

    text: str


def parse_size(size: Union[str, int]) -> Size:
    """Bytes of ``4096``, ``"1 MB"`` (10^6), ``"2 GiB"`` or ``"2G"`` (2^31), ``"1.5 GiB"``."""
    parsed = Size(_bytes(size))
    parsed.text = size.strip() if isinstance(size, str) else show_size(size)
    return parsed


def _bytes(size: Union[str, int]) -> int:
    if isinstance(size, int) and not isinstance(size, bool):
        if size < 0:
            raise ValueError("a size cannot be negative: {}".format(size))
        return size
    match = re.match(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*$", size) if isinstance(size, str) else None
    if match is None or match.group(2).lower() not in _UNITS:
        raise ValueError('expected a size such as "64 MiB", "1 GB" or a number of bytes, not {!r}'.format(size))
    return int(float(match.group(1)) * _UNITS[match.group(2).lower()])


def show_size(size: int) -> str:
    """``1.2 GiB``: at most one decimal, and none if it is 0."""
    if size < 1024:
        return "{} B".format(size)
    value, units = size / 1024, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    # 1023.95 would be shown as 1024.0.
    while value >= 1023.95 and len(units) > 1:
        value /= 1024
        units.pop(0)
    text = "{:.1f}".format(value)
    return "{} {}".format(text[:-2] if text.endswith(".0") else text, units[0])


def show_blocks(count: int) -> str:
    """``1 block``, ``1,024 blocks``."""
    return "1 block" if count == 1 else "{:,} blocks".format(count)
