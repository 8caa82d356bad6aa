"""Writes movies to import as NDJSON to stdout; the same seed gives the same movies.

python -m bench.make_movies 2000000 > movies.ndjson

Words and genres are as frequent as in real catalogues (Zipf's law). Of 6,131 films of Netflix, 24 %
have "the" in their title, 8 % the next word, 1.6 % the 10th, 0.29 % the 100th and 0.05 % the
1000th; here 24, 8.3, 2.0, 0.26 and 0.03. Recent years are more frequent, and runtimes are normally
distributed around 100 minutes.
"""

import random
import signal
import sys
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice

import click
import orjson

BLOCK_MOVIES = 5_000  # drawn at once, which is faster
YEARS = range(1888, 2026)
GENRES = """
drama comedy documentary action thriller romance horror crime adventure family fantasy mystery
animation sci-fi music biography history war musical western sport short film-noir news anime
""".split()  # noqa: SIM905 - as WORDS
# The most frequent word is first.
WORDS = """
the of a in and love to man night on for life day my world girl dead house last black with big king
red one time blue from dark little story heart city death good war white boy lady devil american
secret woman dream men street summer water wild two home star family fire is lost high blood friend
return road first sea no moon old you at american children island murder long stranger angel game
land it paradise hell young dragon fear great days me up end golden all who ghost sun way money
amélie café señor niño château façade über fiancée élite rené josé zoë façon noël été d'or l'amour
rock'n'roll don't can't who's mr. dr. st. vol.2 x-ray 24/7 3:10 #1 8½ «mir» wow! why? no.5 r&b
""".split()  # noqa: SIM905 - a list would be some 400 lines
# The rare words, mostly names, are made of syllables.
SYLLABLES = """
al an ar bel ber bor bra car cas cha cor da del den dor dra el en er fa fen fer fin gar gel gra hal
han har hol is jan jo ka kar kel lan lar len lin lo lor ma mar mel mer mi mon mor na nel ni nor ol
or pa per pol ra ran rel ri rin ro ros sa san sel sha sil son sta ster ta tal tan ter thal tin tor
tra ul un va val van vel ver vi vin vor wal wen wil yan yor za zel
""".split()  # noqa: SIM905 - as WORDS
RARE_WORDS = 30_000
EXTRA_WEIGHT_OF_THE = 0.7  # "the" is more frequent than by Zipf's law
TITLE_WORDS_PERCENT = (18, 25, 22, 16, 11, 8)  # titles with one word, two, ...


def accumulate_zipf_weights(count: int, exponent: float = 1) -> list[float]:
    """Return cumulative weights by rank; with exponent 1, half the rank is twice as frequent."""
    return list(accumulate(rank**-exponent for rank in range(1, count + 1)))


def make_vocabulary(draw: random.Random) -> list[str]:
    """Return the words of titles, the most frequent first."""
    rare = ("".join(draw.choices(SYLLABLES, k=draw.randint(2, 3))) for _ in range(RARE_WORDS))
    return list(dict.fromkeys([*WORDS, *rare]))


def make_movies(count: int, seed: int) -> Iterator[bytes]:
    """Yield `count` lines in blocks."""
    draw = random.Random(seed)  # noqa: S311 - nothing secret
    words = make_vocabulary(random.Random(0))  # noqa: S311 - as above
    genre_weights = accumulate_zipf_weights(len(GENRES))
    # The weights are cumulative and "the" is first, so add its extra weight to all.
    word_weights = [w + EXTRA_WEIGHT_OF_THE for w in accumulate_zipf_weights(len(words), 0.9)]
    year_weights = list(accumulate(1.03 ** (year - YEARS[0]) for year in YEARS))
    for first in range(0, count, BLOCK_MOVIES):
        # Always draw a whole block, so that a larger COUNT starts with the same movies.
        lengths = draw.choices(range(1, 7), TITLE_WORDS_PERCENT, k=BLOCK_MOVIES)
        title_words = iter(draw.choices(words, cum_weights=word_weights, k=sum(lengths)))
        genres = iter(draw.choices(GENRES, cum_weights=genre_weights, k=4 * BLOCK_MOVIES))
        block = zip(
            lengths,
            draw.choices(YEARS, cum_weights=year_weights, k=BLOCK_MOVIES),
            [draw.gauss(100, 22) for _ in range(BLOCK_MOVIES)],
            zip(genres, genres, genres, genres, strict=True),
            draw.choices((1, 2, 3, 4), (25, 35, 30, 10), k=BLOCK_MOVIES),
            strict=True,
        )
        yield b"".join(
            [
                encode_movie(islice(title_words, length), year, minutes, four_genres[:genre_count])
                for length, year, minutes, four_genres, genre_count in islice(block, count - first)
            ]
        )


def encode_movie(words: Iterable[str], year: int, minutes: float, genres: Iterable[str]) -> bytes:
    """Return the movie as a line of JSON."""
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
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # no traceback with `| head`
    for block in make_movies(count, seed):
        sys.stdout.buffer.write(block)


if __name__ == "__main__":
    main(prog_name="python -m bench.make_movies")
