"""Filters that pass many movies are told by a sample, which must not mislead."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from service import app, listing, sampling
from service.config import Config
from service.database.pool import Pool
from service.database.statements import Statements
from service.listing import Filter, Key, Listing, Place

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
    """The statements of a service, which notes what each is for."""

    def __init__(self, statements: Statements) -> None:
        self._fetch = statements.fetch
        self.sent: list[str] = []

    async def fetch(self, name: str, **options: Any) -> Any:
        """Run it."""
        around, _ = options.get("around", ("", ""))
        kinds = {"explain": "estimate", "tablesample": "sample", "with matching": "count"}
        kinds[listing.COSTS] = "walk"
        self.sent.append(next(kind for mark, kind in kinds.items() if mark in around))
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


async def page(spy: Spy, place: Place, sort: str = "id") -> listing.Page:
    """Ask for it."""
    return await Listing(spy).page(ASKED, sort, place, 20)  # type: ignore[arg-type] # all it uses


async def first_page(spy: Spy) -> listing.Page:
    """Ask for it."""
    return await page(spy, Place())


@pytest.mark.parametrize("which", ["n > 5000", "n % 2 = 0", "n % 20 = 0", "n % 60 = 0"])
async def test_many_are_not_counted(spy: Spy, execute: Execute, which: str) -> None:
    """Thousands of them, wherever they are; the page is the same."""
    execute(FILL.replace("%s", which))
    execute("vacuum analyze movies")
    expected = execute(f"select n from generate_series(1, {MOVIES}) as n where {which} limit 20")

    found = await first_page(spy)

    assert "count" not in spy.sent
    assert found.total_is_estimate
    assert [(movie.id,) for movie in found.movies] == expected


@pytest.mark.parametrize("which", ["n <= 200", "n % 200 = 0", "n > 39800"])
async def test_few_are_counted(spy: Spy, execute: Execute, which: str) -> None:
    """Up to so many the total is exact, however they lie."""
    execute(FILL.replace("%s", which))

    found = await first_page(spy)

    assert (found.total, found.total_is_estimate) == (200, False)


@pytest.mark.parametrize("place", [Place(), Place(key=Key(500, 500), total=100)])
async def test_what_is_far_away_is_sorted(
    spy: Spy, execute: Execute, monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    """Where the walk past all others takes too long, and the matches are not too many to sort."""
    monkeypatch.setattr(listing, "WALK", 0.001)
    execute(FILL.replace("%s", "n > 39000"))
    execute("vacuum analyze movies")

    found = await page(spy, place)

    assert spy.sent[-2:] == ["walk", "count"]
    assert found.total_is_estimate == (place.total is None)
    assert [movie.id for movie in found.movies] == list(range(39_001, 39_021))


@pytest.mark.parametrize("total", [100, 1000])
async def test_a_total_that_is_known_is_not_counted(spy: Spy, execute: Execute, total: int) -> None:
    """Exact or not, it is passed on, and the page is all that is asked for."""
    execute(FILL.replace("%s", "n % 200 = 0"))
    execute("vacuum analyze movies")

    after = await page(spy, Place(key=Key(20_000, 20_000), total=total))
    ahead = await page(spy, Place(key=Key(20_000, 20_000), backwards=True, total=total))

    assert [movie.id for movie in after.movies] == list(range(20_200, 24_001, 200))
    assert [movie.id for movie in ahead.movies] == list(range(16_000, 19_801, 200))
    assert spy.sent == ["walk", "walk"]
    for one in (after, ahead):
        assert (one.total, one.total_is_estimate) == (total, total > 200)


async def test_a_deep_page_of_not_too_many_is_sorted(spy: Spy, execute: Execute) -> None:
    """Rather than walked to, past all others that lie between."""
    execute(FILL.replace("%s", "n % 160 = 0"))

    found = await page(spy, Place(skip=120), "year")

    assert spy.sent[-1] == "count"
    assert found.total_is_estimate
    assert [movie.id for movie in found.movies] == list(range(121 * 160, 140 * 160 + 1, 160))


async def test_an_empty_catalogue_has_no_sample(spy: Spy) -> None:
    """There are no movies, for sure."""
    found = await first_page(spy)

    assert (found.total, found.total_is_estimate, found.movies) == (0, False, [])


@pytest.mark.parametrize("movies", [0, 1, 799_999])
def test_too_small_a_catalogue_is_not_sampled(movies: int) -> None:
    """Where `many` movies may be in half of all blocks, little is proven by a sample."""
    assert sampling.samples(movies, 10_000) == []


@pytest.mark.parametrize("movies", [800_000, 2_000_000, 200_000_000])
def test_a_sample_grows_no_larger_with_the_catalogue(movies: int) -> None:
    """It takes as long of any; its proof is more than too few movies would meet on average."""
    samples = sampling.samples(movies, 10_000)

    assert [round(sample.share * movies) for sample in samples] == list(sampling.SIZES)
    for sample in samples:
        assert sample.share * 10_000 < sample.proof


async def test_a_sample_is_the_same_every_time(execute: Execute) -> None:
    """Or the total would be exact on one numbered page, and an estimate on the next."""
    execute(FILL.replace("%s", "n % 2 = 0"))
    before, after = sampling.Sample(0.25, 1).around
    count = f"{before}select * from movies where genres = '{{asked}}'{after}"

    [(movies, blocks)] = execute(count)

    assert 0 < blocks < movies < MOVIES / 2
    assert execute(count) == [(movies, blocks)]


def test_a_proof_is_as_rare_as_it_says() -> None:
    """By the tables of Poisson's law, also where hardly any run would be met."""
    assert sampling._rare(25, 1e-3) == 43  # noqa: SLF001 - what the thresholds are made of
    assert sampling._rare(1, 1e-3) == 6  # noqa: SLF001 - as above
    assert sampling._rare(0.25, 1e-8) == 7  # noqa: SLF001 - as above
