-- Genres with their number of movies (GET /v1/genres).

-- name: count_genres()
-- Returns the genres, the most frequent one first, at most 1000. Spellings that the filter `genres` does not tell
-- apart (genre_entry folds case, accents and blanks at the ends) are one genre, under the most frequent spelling.
-- An empty catalogue returns one row without a genre. as_of: every change that was committed earlier is
-- counted. seconds: the duration of the count, 0.7 for 2 million movies, because it reads the whole table. Each
-- process counts on request and caches the result for 100 times that duration, at least 1 s.
-- set: transaction_read_only = on
-- set: statement_timeout = 60s
with combinations as (
  -- Many movies have the same combination of genres: counting combinations first saves a third to a half
  -- of the time.
  select row_number() over () as combination, m.genres, count(*) as movies
  from movies as m
  group by m.genres
),
spelled as (
  select c.combination, g.spelling, c.movies
  from combinations as c
  cross join unnest(c.genres) as g (spelling)
),
spellings as (
  select s.spelling, genre_entry(s.spelling) as entry, sum(s.movies) as movies
  from spelled as s
  group by s.spelling
),
found as (
  -- Of a movie with two spellings of a genre, one counts.
  select n.entry, s.combination, min(s.movies) as movies
  from spelled as s
  join spellings as n on n.spelling = s.spelling
  group by n.entry, s.combination
),
counted as (
  select f.entry, sum(f.movies)::bigint as movies, count(*) over () as genres
  from found as f
  group by f.entry
  order by sum(f.movies) desc, f.entry collate "C"
  limit 1000
),
named as (
  select distinct on (n.entry) n.spelling as genre, c.movies, c.genres
  from counted as c
  join spellings as n on n.entry = c.entry
  order by n.entry, n.movies desc, n.spelling collate "C"
)
select
  n.genre, n.movies, coalesce(n.genres, 0) as total_records, now() as as_of,
  extract(epoch from clock_timestamp() - now())::double precision as seconds
from (select) as one
left join named as n on true
order by n.movies desc, n.genre collate "C";
