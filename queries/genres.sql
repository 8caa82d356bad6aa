-- Genres and how many movies each has (GET /v1/genres).

-- name: count_genres()
-- The most frequent first; of an empty catalogue, one row without a genre. Every change committed
-- before as_of is counted; seconds is the time that the count took: 0.7 for 2 million movies, as it
-- reads the whole table. Each process counts when a client asks, and keeps the answer for 100 times
-- as long as the count took, 1 s at least.
-- A genre of more than 500 bytes is not counted, and 1000 genres are returned: so the answer stays
-- small, whatever clients send.
-- set: transaction_read_only = on
-- set: statement_timeout = 60s
with combinations as (
  -- There are few combinations of genres: counted first, they save a third to a half of the time.
  select m.genres, count(*) as movies
  from movies as m
  group by m.genres
),
counted as (
  select g.genre, sum(c.movies)::bigint as movies, count(*) over () as genres
  from combinations as c
  cross join unnest(c.genres) as g (genre)
  where octet_length(g.genre) <= 500
  group by g.genre
  order by sum(c.movies) desc, g.genre collate "C"
  limit 1000
)
select
  c.genre, c.movies, coalesce(c.genres, 0) as total_records, now() as as_of,
  extract(epoch from clock_timestamp() - now())::double precision as seconds
from (select) as one
left join counted as c on true
order by c.movies desc, c.genre collate "C";
