"""Filters that pass many movies are told by a sample, which must not mislead."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from service import app, listing, sampling
from service.config import Config
from service.database.pool import Pool
from service.database.statements import Statements
from service.listing import Filter, Listing, Place

Execute = Callable[..., list[tuple[Any, ...]]]

# 40,000 movies, of which so many, or so few, have the genre: all the first ones, or every n-th.
MOVIES = 40_000
FILL = f"""
insert into movies (title, year, runtime, genres)
select 'Movie ' || n, 2000, 100, array[case when %s then 'asked' else 'other' end]
from generate_series(1, {MOVIES}) as n
"""
ASKED = Filter(genres=("asked",))


class Spy:
    """The statements of a service, which notes whether one counts movies."""

    def __init__(self, statements: Statements) -> None:
        self._fetch = statements.fetch
        self.counted = False

    async def fetch(self, name: str, **options: Any) -> Any:
        """Run it."""
        self.counted |= "matching" in options.get("around", ("", ""))[0]
        return await self._fetch(name, **options)


@pytest.fixture
async def spy(
    settings: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Spy]:
    """Statements on a database in which more than 200 movies are many."""
    monkeypatch.setattr(listing, "EXACT", 200)
    monkeypatch.setattr(listing, "PROMISING", 0)
    config = settings()

    async def prove(_: Any) -> None:
        """Nothing to prove."""

    pool = Pool(config.database, prove)
    yield Spy(Statements(pool, app.load_queries(config), config.database.statement_timeout))
    await pool.close(1)


async def first_page(spy: Spy) -> listing.Page:
    """Ask for it."""
    return await Listing(spy).page(ASKED, "id", Place(), 20)  # type: ignore[arg-type] # all it uses


@pytest.mark.parametrize("which", ["n > 5000", "n % 2 = 0", "n % 20 = 0", "n % 60 = 0"])
async def test_many_are_not_counted(spy: Spy, execute: Execute, which: str) -> None:
    """Thousands of them, wherever they are; the page is the same."""
    execute(FILL.replace("%s", which))
    execute("vacuum analyze movies")
    expected = execute(f"select n from generate_series(1, {MOVIES}) as n where {which} limit 20")

    page = await first_page(spy)

    assert not spy.counted
    assert page.total_is_estimate
    assert [(movie.id,) for movie in page.movies] == expected


@pytest.mark.parametrize("which", ["n <= 200", "n % 200 = 0", "n > 39800"])
async def test_few_are_counted(spy: Spy, execute: Execute, which: str) -> None:
    """Up to so many the total is exact, however they lie."""
    execute(FILL.replace("%s", which))

    page = await first_page(spy)

    assert (page.total, page.total_is_estimate) == (200, False)


async def test_many_far_away_are_sorted(
    spy: Spy, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the walk past all others takes too long, and the matches are not too many to sort."""
    monkeypatch.setattr(listing, "WALK", 0.001)
    execute(FILL.replace("%s", "n > 39000"))
    execute("vacuum analyze movies")

    page = await first_page(spy)

    assert spy.counted
    assert page.total_is_estimate
    assert [movie.id for movie in page.movies] == list(range(39_001, 39_021))


async def test_an_empty_catalogue_has_no_sample(spy: Spy) -> None:
    """There are no movies, for sure."""
    page = await first_page(spy)

    assert (page.total, page.total_is_estimate, page.movies) == (0, False, [])


@pytest.mark.parametrize("largest", [0, 1, 19_999, 399_999])
def test_too_small_a_catalogue_is_not_sampled(largest: int) -> None:
    """Where `many` movies may be in every fourth run, little is proven by a sample."""
    assert sampling.draw(largest, 10_000) == []


@pytest.mark.parametrize("largest", [400_000, 2_000_000, 200_000_000])
def test_a_sample_is_the_same_every_time(largest: int) -> None:
    """Of ids that are there, in whole runs; its proof lies between what is likely and all of it."""
    samples = sampling.draw(largest, 10_000)

    assert samples == sampling.draw(largest, 10_000)
    assert len(samples) == len(sampling.SIZES)
    seen: set[int] = set()
    for sample, size in zip(samples, sampling.SIZES, strict=True):
        ids = {int(number) for number in sample.ids.strip("{}").split(",")}
        assert len(ids) == size * sampling.RUN
        assert max(ids) <= largest
        assert len({number // sampling.RUN for number in ids}) == size
        assert not ids & seen
        assert size * 10_000 / (largest / sampling.RUN) < sample.doubt < sample.proof < size
        seen |= ids


def test_a_proof_is_as_rare_as_it_says() -> None:
    """By the tables of Poisson's law, also where hardly any run would be met."""
    assert sampling._rare(25, 1e-3) == 43  # noqa: SLF001 - what the thresholds are made of
    assert sampling._rare(1, 1e-3) == 6  # noqa: SLF001 - as above
    assert sampling._rare(0.25, 1e-8) == 7  # noqa: SLF001 - as above
