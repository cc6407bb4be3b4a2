"""Amounts on the command line: money, counts and times, checked where they are read (BOUND-13)."""

from __future__ import annotations

from collections.abc import Callable

import click

from turnd_client.units import NotAQuantity, parse_count, parse_duration_ms, parse_usd


class Quantity(click.ParamType[int]):
    """An amount that is 0 or more; anything else is a usage error."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return self._parse(str(value))
        except NotAQuantity as wrong:
            self.fail(str(wrong), param, ctx)


USD = Quantity("USD", parse_usd)
COUNT = Quantity("N", parse_count)
DURATION = Quantity("TIME", parse_duration_ms)
