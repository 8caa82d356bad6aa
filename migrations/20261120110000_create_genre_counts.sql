-- How many movies each genre has, counted now and then (queries/genres.sql) and not with every
-- write: a row that every create had to change would let them through one at a time.

-- migrate:up
create table genre_counts (
  genre  text   primary key,
  movies bigint not null
);

-- The one row about the counts. Whoever counts holds it, so that nobody counts beside them.
create table genre_counting (
  one        boolean primary key default true check (one),
  counted_at timestamptz,
  looked_at  timestamptz,
  genres     bigint not null default 0,
  mark       text
);

comment on column genre_counting.counted_at is 'when movies was last read';
comment on column genre_counting.looked_at is 'when somebody last looked whether movies has changed';
comment on column genre_counting.genres is 'how many there are; genre_counts has the most frequent';
comment on column genre_counting.mark is
  'get_movies_mark() before movies was last read; set it to null to have all counted anew';

-- The first count, so that the new code has an answer from its start. The next one, by the service,
-- finds no mark and counts again.
with counted as materialized (
  select g.genre, count(*) as movies, count(*) over () as genres
  from movies as m
  cross join unnest(m.genres) as g (genre)
  where octet_length(g.genre) <= 500
  group by g.genre
  order by count(*) desc, g.genre collate "C"
  limit 1000
),
kept as (
  insert into genre_counts (genre, movies)
  select c.genre, c.movies
  from counted as c
)
insert into genre_counting (counted_at, genres)
select now(), coalesce(max(c.genres), 0)
from counted as c;

-- migrate:down
drop table genre_counting;
drop table genre_counts;
