"""The table of prices that comes with turnd: what of it becomes tiers, and what stays unknown."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from genai_prices import Usage
from genai_prices.data import providers
from genai_prices.types import (
    ClauseEquals,
    ConditionalPrice,
    ModelInfo,
    ModelPrice,
    StartDateConstraint,
    Tier,
    TieredPrices,
    TimeOfDateConstraint,
)
from tests.unit.models_fakes import VirtualClock

from turnd.models.catalogue import Catalogue
from turnd.models.endpoint import CompatibleEndpoint
from turnd.models.keys import Keys
from turnd.models.price_table import pricing_at, pricing_from, pricing_of
from turnd.models.pricing import FREE
from turnd.ports import Model
from turnd.rules import price
from turnd.v1 import common_pb2 as common

OPENAI = "https://api.openai.com/v1"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOKENS = common.TokenCounts(
    input_tokens=90_000, output_tokens=700, cache_read_tokens=400_000, cache_write_tokens=3_000
)


def us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def entry(*prices: ConditionalPrice) -> ModelInfo:
    return ModelInfo(id="m", match=ClauseEquals("m"), prices=list(prices))


def rates(input_usd: str, output_usd: str = "9") -> ModelPrice:
    return ModelPrice(input_mtok=Decimal(input_usd), output_mtok=Decimal(output_usd))


def opened(endpoint: CompatibleEndpoint, model: str) -> Model:
    return Catalogue(VirtualClock(), Keys({}), [endpoint]).open(f"openai-compatible/{endpoint.name}/{model}")


@pytest.mark.req("BOUND-08")
def test_a_model_is_found_by_its_vendor_or_by_the_url_of_its_api() -> None:
    known = pricing_of("openai", "gpt-4o")
    assert known is not None
    assert known == pricing_at(OPENAI, "gpt-4o")
    (tier,) = known.tiers
    assert (tier.input, tier.output, tier.free) == (2_500_000_000, 10_000_000_000, False)
    assert tier.cache_read == 1_250_000_000
    assert tier.cache_write == tier.input, "cached input that has no rate costs as input does"


@pytest.mark.req("BOUND-08", "M05")
def test_what_the_table_does_not_know_has_no_price() -> None:
    assert pricing_of("openai", "no such model") is None
    assert pricing_of("no such vendor", "gpt-4o") is None
    assert pricing_at("http://127.0.0.1:8080/v1", "gpt-4o") is None
    assert pricing_at(OPENAI, "no such model") is None


@pytest.mark.req("BOUND-08")
def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert pricing_of("anthropic", "claude-3-haiku") is not None


@pytest.mark.req("BOUND-08")
def test_dates_times_of_day_and_input_sizes_become_tiers() -> None:
    dear = ModelPrice(
        input_mtok=TieredPrices(base=Decimal(4), tiers=[Tier(start=1000, price=Decimal(8))]),
        output_mtok=Decimal(9),
    )
    found = pricing_from(
        entry(
            ConditionalPrice(prices=rates("1")),
            ConditionalPrice(StartDateConstraint(date(2026, 3, 1)), prices=dear),
            ConditionalPrice(TimeOfDateConstraint(time(22), time(6, 30)), prices=rates("0.5")),
        )
    )
    assert found is not None

    def input_rate(moment: datetime, size: int = 10) -> float:
        return found.match(us(moment), common.TokenCounts(input_tokens=size)).input / 10**9

    assert input_rate(datetime(2020, 1, 1, 12, tzinfo=UTC)) == 1
    assert input_rate(datetime(2026, 2, 28, 21, 59, 59, tzinfo=UTC)) == 1
    assert input_rate(datetime(2026, 3, 1, 6, 30, tzinfo=UTC)) == 4
    assert input_rate(datetime(2026, 3, 1, 6, 30, tzinfo=UTC), 1000) == 4
    assert input_rate(datetime(2026, 3, 1, 6, 30, tzinfo=UTC), 1001) == 8
    assert input_rate(datetime(2026, 3, 1, 6, 29, 59, tzinfo=UTC), 1001) == 0.5
    assert input_rate(datetime(2020, 1, 1, 22, tzinfo=UTC)) == 0.5


@pytest.mark.req("BOUND-08", "M05")
@pytest.mark.parametrize(
    "prices",
    [
        ModelPrice(),
        ModelPrice(input_mtok=Decimal(1)),
        ModelPrice(output_mtok=Decimal(1)),
        ModelPrice(input_mtok=Decimal(1), output_mtok=Decimal(1), requests_kcount=Decimal(5)),
        ModelPrice(input_mtok=Decimal(1), output_mtok=Decimal(1), output_reasoning_mtok=Decimal(2)),
    ],
    ids=["nothing", "no output", "no input", "a fee for each request", "a rate of its own for reasoning"],
)
def test_a_price_that_five_counts_do_not_tell_is_unknown(prices: ModelPrice) -> None:
    assert pricing_from(entry(ConditionalPrice(prices=prices))) is None
    later = ConditionalPrice(StartDateConstraint(date(2026, 3, 1)), prices=prices)
    assert pricing_from(entry(ConditionalPrice(prices=rates("1")), later)) is None


def test_a_table_that_says_zero_says_free() -> None:
    found = pricing_from(entry(ConditionalPrice(prices=rates("0", "0"))))
    assert found is not None
    assert found.tiers[0].free


def test_a_constraint_of_a_kind_that_is_not_known_makes_the_price_unknown() -> None:
    class Weekday(StartDateConstraint):
        pass

    odd = ConditionalPrice(Weekday(date(2026, 3, 1)), prices=rates("1"))
    assert pricing_from(entry(ConditionalPrice(prices=rates("1")), odd)) is None


@pytest.mark.req("BOUND-05", "BOUND-08")
@pytest.mark.parametrize(
    "moment", [datetime(2025, 6, 1, 5, tzinfo=UTC), datetime(2026, 11, 30, 7, tzinfo=UTC)]
)
def test_every_model_of_the_table_costs_what_the_table_computes(moment: datetime) -> None:
    """Its own arithmetic against ours; its input holds what was cached, ours does not."""
    priced = 0
    usage = Usage(
        input_tokens=price.input_size(TOKENS),
        cache_read_tokens=TOKENS.cache_read_tokens,
        cache_write_tokens=TOKENS.cache_write_tokens,
        output_tokens=TOKENS.output_tokens,
    )
    for provider in providers:
        for model in provider.models:
            found = pricing_from(model)
            if found is None:
                continue
            priced += 1
            ours = price.cost(found.match(us(moment), TOKENS), TOKENS)
            theirs = model.calc_price(usage, provider, genai_request_timestamp=moment).total_price
            assert abs(ours - Fraction(theirs) * 10**9) < 2, (provider.id, model.id)
    assert priced > 1500


@pytest.mark.req("BOUND-08")
async def test_the_configuration_wins_over_the_table_and_a_model_over_its_server() -> None:
    at, tokens = us(datetime(2026, 11, 1, tzinfo=UTC)), common.TokenCounts(input_tokens=1)
    mine = price.Pricing((price.PriceTier("mine", 1, 1, 1, 1),))

    bare = opened(CompatibleEndpoint("bare", OPENAI), "gpt-4o")
    await bare.prepare()
    found = bare.price(at, tokens)
    assert found is not None
    assert found.input == 2_500_000_000
    unprepared = opened(CompatibleEndpoint("bare", OPENAI), "gpt-4o")
    assert unprepared.price(at, tokens) == found

    server = CompatibleEndpoint("server", OPENAI, pricing=FREE, prices={"gpt-4o": mine})
    one, other = opened(server, "gpt-4o"), opened(server, "gpt-5")
    await one.prepare()
    assert one.price(at, tokens) == mine.tiers[0]
    assert other.price(at, tokens) == FREE.tiers[0]


def test_the_table_is_not_loaded_before_it_is_needed() -> None:
    program = (
        "import sys, turnd.app; from turnd.models.catalogue import Catalogue; from turnd.models.keys import Keys\n"
        "from turnd.models.endpoint import CompatibleEndpoint as E; from turnd.models.pricing import FREE\n"
        "from turnd.v1.common_pb2 import TokenCounts\n"
        "models = Catalogue(None, Keys({}), [E('a', 'http://127.0.0.1:1', pricing=FREE)])\n"
        "models.open('openai-compatible/a/m').price(0, TokenCounts())\n"
        "print([name for name in sys.modules if name in ('genai_prices', 'pydantic', 'httpx2')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr
