"""Movies for trying out an import: NDJSON on stdout, the same for the same seed.

python -m bench.make_movies 2000000 > movies.ndjson

Words and genres come as they do in catalogues, some often and most seldom (Zipf's law). Of 6,131
films of Netflix, 24 % have "the" in their title, 8 % the next word, 1.6 % the tenth, 0.29 % the
hundredth and 0.05 % the thousandth; here 24, 8.3, 2.0, 0.26 and 0.03. Years lean to recent ones,
and runtimes are spread around 100 minutes. `python -m bench.make_movies --help`.
"""

import random
import signal
import sys
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice

import click
import orjson

BLOCK = 5_000  # movies that are drawn at once
YEARS = range(1888, 2026)
GENRES = """
drama comedy documentary action thriller romance horror crime adventure family fantasy mystery
animation sci-fi music biography history war musical western sport short film-noir news anime
""".split()  # noqa: SIM905 - as WORDS
# Ordered from often to seldom.
WORDS = """
the of a in and love to man night on for life day my world girl dead house last black with big king
red one time blue from dark little story heart city death good war white boy lady devil american
secret woman dream men street summer water wild two home star family fire is lost high blood friend
return road first sea no moon old you at american children island murder long stranger angel game
land it paradise hell young dragon fear great days me up end golden all who ghost sun way money
desert garden out journey train under an silent winter brother kid bad paris wedding mother by
kiss dog bride river monster down right wolf happy eyes green girls new men party ring bird shadow
super west super express rain hero song face mountain eye master sister flight father rose silver
before music run horse honor gun school legend wind castle beyond queen honey killer part never
country sky three perfect half heaven true steel another sweet state diary years affair bridge past
hotel dance beast cold key justice voyage lucky lover broken ten doctor spy tiger book space sword
club trail north gold escape live thousand crazy inside hunter valley fall power evil hand room fish
second south call after iron adventure final outlaw witch bullet crime thief we seven storm lives
magic captain prince warrior hill letter bay forever miss spirit without rock glass body rise only
through train boys hot jack other lonely pirate ride free mask point christmas law mad snow forest
moment sleep name doll curse diamond target beautiful deep saint empire box line count cat mission
four cross five flame forbidden east age machine tower doors alone trap hunt wings zero mirror
promise circus lake nothing cloud prison dust nobody crown tree stone evening hour autumn spring
sand empty harbor lighthouse orchard lantern violin compass tide ember willow sparrow harvest marble
amélie café señor niño château façade über fiancée élite rené josé zoë façon noël été d'or l'amour
rock'n'roll don't can't who's mr. dr. st. vol.2 x-ray 24/7 3:10 #1 8½ «mir» wow! why? no.5 r&b
""".split()  # noqa: SIM905 - a list would be some 400 lines
# What the many words are made of that few titles have, names mostly.
SYLLABLES = """
al an ar bel ber bor bra car cas cha cor da del den dor dra el en er fa fen fer fin gar gel gra hal
han har hol is jan jo ka kar kel lan lar len lin lo lor ma mar mel mer mi mon mor na nel ni nor ol
or pa per pol ra ran rel ri rin ro ros sa san sel sha sil son sta ster ta tal tan ter thal tin tor
tra ul un va val van vel ver vi vin vor wal wen wil yan yor za zel
""".split()  # noqa: SIM905 - as WORDS
NAMES = 30_000
OFTENER = 0.7  # times its weight, "the" comes oftener than by Zipf's law
LENGTHS = (18, 25, 22, 16, 11, 8)  # of a hundred titles, how many have one word, two, ...


def zipf(count: int, exponent: float = 1) -> list[float]:
    """Cumulative weights by rank: with 1, each thing half as often as the one of half its rank."""
    return list(accumulate(rank**-exponent for rank in range(1, count + 1)))


def vocabulary(draw: random.Random) -> list[str]:
    """The words of titles, from often to seldom."""
    names = ("".join(draw.choices(SYLLABLES, k=draw.randint(2, 3))) for _ in range(NAMES))
    return list(dict.fromkeys([*WORDS, *names]))


def movies(count: int, seed: int) -> Iterator[bytes]:
    """Blocks of lines, with `count` movies altogether."""
    draw = random.Random(seed)  # noqa: S311 - nothing secret
    words = vocabulary(random.Random(0))  # noqa: S311 - as above
    often, genres = zipf(len(words), 0.9), zipf(len(GENRES))
    often = [weight + OFTENER for weight in often]  # the first word, "the", by so much
    years = list(accumulate(1.03 ** (year - YEARS[0]) for year in YEARS))
    for first in range(0, count, BLOCK):
        # Always a whole block: so many movies are the first ones of more.
        lengths = draw.choices(range(1, 7), LENGTHS, k=BLOCK)
        pool = iter(draw.choices(words, cum_weights=often, k=sum(lengths)))
        drawn = iter(draw.choices(GENRES, cum_weights=genres, k=4 * BLOCK))
        block = zip(
            lengths,
            draw.choices(YEARS, cum_weights=years, k=BLOCK),
            [draw.gauss(100, 22) for _ in range(BLOCK)],
            zip(drawn, drawn, drawn, drawn, strict=True),
            draw.choices((1, 2, 3, 4), (25, 35, 30, 10), k=BLOCK),
            strict=True,
        )
        yield b"".join(
            [
                line(islice(pool, length), year, minutes, some[:most])
                for length, year, minutes, some, most in islice(block, count - first)
            ]
        )


def line(words: Iterable[str], year: int, minutes: float, genres: Iterable[str]) -> bytes:
    """Write a movie."""
    movie = {
        "title": " ".join([word[:1].upper() + word[1:] for word in words]),
        "year": year,
        "runtime": f"{max(1, round(minutes))} mins",
        "genres": list(dict.fromkeys(genres)),
    }
    return orjson.dumps(movie, option=orjson.OPT_APPEND_NEWLINE)


@click.command()
@click.argument("count", type=click.IntRange(0))
@click.option("--seed", default=1, show_default=True)
def main(count: int, seed: int) -> None:
    """Write COUNT movies as NDJSON."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it quietly
    for block in movies(count, seed):
        sys.stdout.buffer.write(block)


if __name__ == "__main__":
    main(prog_name="python -m bench.make_movies")
