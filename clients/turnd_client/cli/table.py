"""Columns of plain text."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.cells import cell_len, set_cell_size


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Rows of safe text, the first of which is the head, in columns as wide as their widest cell."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (set_cell_size(text, width) for text, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
