"""A vendor's wish how long to wait, in each of its forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.models.retry_after import LONGEST_MS, retry_after_ms

NOW_US = 1_445_412_480_000_000  # Wed, 21 Oct 2015 07:28:00 GMT

pytestmark = pytest.mark.req("MODEL-04")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "30"}, 30_000),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "0.25"}, 250),
        ({"retry-after": " 2 "}, 2000),
        ({"retry-after": "86400"}, 86_400_000),
        ({"retry-after": "20s"}, 20_000),
        ({"retry-after": "1500ms"}, 1500),
        ({"retry-after-ms": "1234"}, 1234),
        ({"retry-after-ms": "0.5"}, 1),
        ({"retry-after-ms": "700", "retry-after": "1"}, 700),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1000),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, 30_000),
        ({"retry-after": "Wednesday, 21-Oct-15 07:28:30 GMT"}, 30_000),
        ({"retry-after": "Wed Oct 21 07:28:30 2015"}, 30_000),
        ({"retry-after": "Wed, 21 Oct 2015 09:28:30 +0200"}, 30_000),
        ({"retry-after": "Wed, 21 Oct 2015 07:27:00 GMT"}, 0),
        ({"retry-after": "Wed, 21 Oct 2115 07:28:00 GMT"}, LONGEST_MS),
        ({"retry-after": "9" * 400}, LONGEST_MS),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "later"}, None),
        ({"retry-after": "Wed, 99 Oct 2015 07:28:30 GMT"}, None),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 -2359"}, LONGEST_MS),
    ],
)
def test_forms(headers: dict[str, str], expected: int | None) -> None:
    assert retry_after_ms(headers, NOW_US) == expected


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_header_can_hurt(in_seconds: str, in_ms: str) -> None:
    wait = retry_after_ms({"retry-after": in_seconds, "retry-after-ms": in_ms}, NOW_US)
    assert wait is None or 0 <= wait <= LONGEST_MS
