"""Money and time as people write them. Inside everything is integer nano-USD and integer milliseconds."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

NANO = 10**9
_LARGEST = 2**63 - 1
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")


class NotAQuantity(ValueError):
    """The text is no amount that can be a bound; the message says which form is expected (BOUND-13)."""


def parse_usd(text: str) -> int:
    """Nano-USD of an amount such as `0.25`. Zero is an amount; negative ones, NaN and words are none."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        raise NotAQuantity(f"expected an amount in USD such as 0.25, found {text!r}") from None
    if not amount.is_finite() or amount < 0:
        raise NotAQuantity(f"expected an amount in USD that is 0 or more, found {text!r}")
    nano = amount * NANO
    if nano != nano.to_integral_value():
        raise NotAQuantity(f"expected at most nine decimal places, found {text!r}")
    return _bounded(int(nano), text)


def parse_count(text: str) -> int:
    """A whole number from 0 on."""
    if not re.fullmatch(r"\d+", text, re.ASCII):
        raise NotAQuantity(f"expected a whole number that is 0 or more, found {text!r}")
    return _bounded(int(text), text)


def parse_duration_ms(text: str) -> int:
    """Milliseconds of a time such as `90`, `90s`, `1.5m` or `2h`."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise NotAQuantity(f"expected a time that is 0 or more, such as 90, 90s, 1.5m or 2h, found {text!r}")
    number, unit = found.groups()
    return _bounded(int(Decimal(number) * _SECONDS[unit] * 1000), text)


def usd(nano_usd: int) -> float:
    """For JSON: USD as a number."""
    return float(Decimal(nano_usd) / NANO)


def usd_text(nano_usd: int) -> str:
    """For people: `$0.0123`; four decimal places, more where less would show nothing."""
    if nano_usd == 0:
        return "$0"
    amount = Decimal(nano_usd) / NANO
    if amount >= Decimal("0.0001"):
        return f"${amount:.4f}"
    return f"${amount.normalize():f}"


def cost_text(nano_usd: int, *, estimated: bool, unpriced: bool) -> str:
    """The same with its marks: `~` where some of it is an estimate, `+` where some of it has no known price."""
    return usd_text(nano_usd) + ("~" if estimated else "") + ("+" if unpriced else "")


def duration_text(milliseconds: int) -> str:
    """For people: `850 ms`, `12.3 s`, `4 min 5 s`."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, rest = divmod(milliseconds // 1000, 60)
    return f"{minutes} min {rest} s"


def counted(number: int, thing: str) -> str:
    """For people: `1 step`, `2 steps`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def size_text(size: int) -> str:
    """For people: `812 B`, `4.2 KiB`, `12.3 MiB`, `1.5 GiB`."""
    if size < 1024:
        return f"{size} B"
    scaled = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        scaled /= 1024
        if scaled < 1024 or unit == "GiB":
            break
    return f"{scaled:.1f} {unit}"


def _bounded(value: int, text: str) -> int:
    if value > _LARGEST:
        raise NotAQuantity(f"{text!r} is too large: leave the option out for no bound")
    return value
