"""Times without loss: read as integers and a power of ten, shifted exactly, and rounded to a float once, at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from fractions import Fraction
from functools import lru_cache

from opt.core.errors import InstanceError
from opt.core.exact import rational
from opt.core.traces.table import BadRow, Request, shown

__all__ = ["Clock", "calendar_moment", "exact_rate", "moment"]

NUMBER = re.compile(r"([+-]?)(\d*)\.?(\d*)(?:[eE]([+-]?\d{1,3}))?", re.ASCII)
CALENDAR = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):?(\d\d))?",
    re.ASCII,
)
MIN_RATE, MAX_RATE = Fraction(1, 10**12), Fraction(10**12)
MAX_DIGITS = 40  # more than any clock has; keeps the common scale of a file small
CALENDAR_DECIMALS = 9
DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60
END_OF_DATES_S = (date(3000, 1, 1) - date(1970, 1, 1)).days * DAY_S
MAX_SPREAD_S = 10 * 365 * DAY_S  # no trace lasts ten years, but a Unix epoch is fifty years from a relative clock


def moment(name: str, text: str, decimals: int = 0) -> tuple[int, int]:
    """Return the time `text / 10**decimals` seconds as (ticks, decimals), exact: ticks / 10**decimals seconds.

    Args:
        name: the field, for the message.
        text: a decimal number, with an exponent or without.
        decimals: 3 where the field is in milliseconds, 9 where it is in nanoseconds.

    Raises:
        BadRow: no finite number, a negative one, or one with more than 40 digits.
    """
    match = NUMBER.fullmatch(text.strip())
    if match is None or not (match[2] or match[3]):
        raise BadRow(f"{name} = {shown(text)}: must be a time, a number >= 0")
    sign, integer, fraction, exponent = match.groups()
    ticks = int(integer + fraction) if len(integer) + len(fraction) <= MAX_DIGITS else -1
    places = len(fraction) - int(exponent or 0)
    if ticks < 0 or abs(places) > MAX_DIGITS:
        raise BadRow(f"{name} = {shown(text)}: must be a time of at most {MAX_DIGITS} digits")
    if sign == "-" and ticks:
        raise BadRow(f"{name} = {shown(text)}: must be a time >= 0")
    if places < 0:
        ticks, places = ticks * 10**-places, 0
    return ticks, places + decimals


@lru_cache(maxsize=4096)
def _day_s(day: str) -> int:
    """Return the seconds from 1970-01-01 to a day; a trace spans few days, so each is worked out once."""
    return (date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()) * DAY_S


def calendar_moment(name: str, text: str) -> tuple[int, int]:
    """Return a date and time (UTC, or with its offset) as (ticks, 9): nanoseconds since 1970, exact.

    Raises:
        BadRow: no such date, outside 1970 to 2999, or not in the form 2023-11-16 18:17:03.9799600 or ...+00:00.
    """
    match = CALENDAR.fullmatch(text.strip())
    if match is None:
        raise BadRow(f"{name} = {shown(text)}: must be a date and time such as 2023-11-16 18:17:03.9799600")
    day, hour, minute, second, fraction, sign, offset_hour, offset_minute = match.groups()
    try:
        seconds = _day_s(day)
    except ValueError:
        raise BadRow(f"{name} = {shown(text)}: there is no such day") from None
    if int(hour) > 23 or int(minute) > 59 or int(second) > 59 or int(offset_hour or 0) > 23 or int(offset_minute or 0) > 59:
        raise BadRow(f"{name} = {shown(text)}: there is no such time of day")
    seconds += int(hour) * HOUR_S + int(minute) * MINUTE_S + int(second)
    if sign:
        offset = int(offset_hour) * HOUR_S + int(offset_minute) * MINUTE_S
        seconds += offset if sign == "-" else -offset
    if not 0 <= seconds < END_OF_DATES_S:
        raise BadRow(f"{name} = {shown(text)}: must be a date from 1970 to 2999")
    return seconds * 10**CALENDAR_DECIMALS + int((fraction or "").ljust(CALENDAR_DECIMALS, "0")), CALENDAR_DECIMALS


def exact_rate(rate_scale: str | float) -> Fraction:
    """Return `rate_scale` as the exact value of its decimal form: 0.1 is one tenth.

    Raises:
        InstanceError: not a number from 1e-12 to 1e12.
    """
    rate = rational("rate_scale", rate_scale)
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InstanceError(f"rate_scale = {rate_scale!r}: must be a number from 1e-12 to 1e12")
    return rate


@dataclass(frozen=True)
class Clock:
    """The times of a file on one scale: `ticks[i] / 10**decimals` seconds, exact.

    Args:
        ticks: one integer for each request, in file order.
        decimals: the scale.
    """

    ticks: Sequence[int]
    decimals: int

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Clock:
        """Return the clock that fits the finest time among `requests`."""
        decimals = max((request.decimals for request in requests), default=0)
        return cls([request.ticks * 10 ** (decimals - request.decimals) for request in requests], decimals)

    def strangers(self) -> list[int]:
        """Return the positions whose time lies more than ten years from the median: they keep another clock."""
        if not self.ticks:
            return []
        spread = MAX_SPREAD_S * 10**self.decimals
        if max(self.ticks) - min(self.ticks) <= spread:
            return []
        median = self.median
        return [at for at, tick in enumerate(self.ticks) if abs(tick - median) > spread]

    @property
    def median(self) -> int:
        """The median time in ticks."""
        return sorted(self.ticks)[(len(self.ticks) - 1) // 2]

    def order(self) -> list[int]:
        """Return the positions by time; equal times keep the order of the file."""
        return sorted(range(len(self.ticks)), key=self.ticks.__getitem__)

    def arrivals(self, order: Sequence[int], rate: Fraction) -> list[float]:
        """Return the seconds since the earliest time, divided by `rate`: each the float nearest to the exact value.

        Raises:
            InstanceError: a value lies outside the range of a float.
        """
        if not order:
            return []
        first = self.ticks[order[0]]
        # An integer division in Python rounds correctly whatever the size of its operands.
        numerator, denominator = rate.denominator, 10**self.decimals * rate.numerator
        try:
            return [(self.ticks[at] - first) * numerator / denominator for at in order]
        except OverflowError:
            raise InstanceError(f"rate_scale = {rate}: the arrivals exceed the range of a float") from None

    def text(self, ticks: int, calendar: bool) -> str:
        """Return a time exactly: decimal seconds, or a UTC date and time where `calendar`."""
        seconds, rest = divmod(ticks, 10**self.decimals)
        fraction = str(rest).rjust(self.decimals, "0").rstrip("0") if rest else ""
        whole = str(datetime(1970, 1, 1) + timedelta(seconds=seconds)) if calendar else str(seconds)
        return f"{whole}.{fraction}" if fraction else whole
