-- What the service asks about genres. Their counts are kept in genre_counts and brought up to date
-- every half a minute or so by whichever process finds them old; nobody who writes waits for that.
-- A genre of more than 500 bytes is not counted, and the 1000 most frequent are kept: so whatever
-- is sent as a genre, these tables and the answers made of them stay small.

-- name: get_genres()
-- The most frequent first; of an empty catalogue, one row without a genre. Every change committed
-- before as_of is counted. A later look that found no change moves it on, but not up to that look:
-- what a session did may be in the statistics only 10 s later (or, if it began a long transaction
-- right after, with the end of that one).
-- https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-STATS-VIEWS
select
  g.genre,
  g.movies,
  c.genres as total_records,
  greatest(c.counted_at, c.looked_at - interval '15 seconds') as as_of
from genre_counting as c
left join genre_counts as g on true
where c.counted_at is not null
order by g.movies desc, g.genre collate "C";

-- name: get_movies_mark()
-- A text that differs from an earlier one if movies has changed in between; null where that cannot
-- be told. The counters miss a truncate, which gives the table a new file, and start again after a
-- crash, a failover or a reset, which the two times tell. In PostgreSQL 14 they may get lost.
select
  case
    when current_setting('track_counts')::boolean
     and current_setting('server_version_num')::integer >= 150000
    then pg_relation_filenode(m.oid)
      || ' ' || pg_stat_get_tuples_inserted(m.oid)
      || ' ' || pg_stat_get_tuples_updated(m.oid)
      || ' ' || pg_stat_get_tuples_deleted(m.oid)
      || ' ' || coalesce(pg_stat_get_db_stat_reset_time(d.oid)::text, 'never')
      || ' ' || b.stats_reset
  end as mark
from pg_class as m
join pg_database as d on d.datname = current_database()
cross join pg_stat_bgwriter as b
where m.oid = 'movies'::regclass;

-- name: count_genres(older_than, mark)
-- \set older_than 0
-- \set mark null
-- Does nothing, and returns no row, if somebody looked less than older_than seconds ago or is at it
-- now. Otherwise it says whether it counted: not if movies still has the mark of the last count,
-- unless that is an hour ago, which bounds what statistics may miss. The mark has to be asked for
-- before, in a statement of its own: one that is younger than what is counted here would hide what
-- was committed in between for good.
with missing as (
  insert into genre_counting (one)
  select true
  where not exists (select from genre_counting)
  on conflict do nothing
),
turn as materialized (
  select
    not coalesce(c.mark = :mark and c.counted_at > now() - interval '1 hour', false) as due
  from genre_counting as c
  -- Of a clock that was put back, too.
  where coalesce(abs(extract(epoch from now() - c.looked_at)), 'infinity') >= :older_than
  for update skip locked
),
alike as (
  -- There are few combinations of genres: counted first, they spare a third to a half of the time.
  select m.genres, count(*) as movies
  from movies as m
  -- Not as a join: this way the table is not touched unless it is due.
  where (select t.due from turn as t)
  group by m.genres
),
counted as materialized (
  select g.genre, sum(a.movies)::bigint as movies, count(*) over () as genres
  from alike as a
  cross join unnest(a.genres) as g (genre)
  where octet_length(g.genre) <= 500
  group by g.genre
  order by sum(a.movies) desc, g.genre collate "C"
  limit 1000
),
kept as (
  insert into genre_counts as k (genre, movies)
  select c.genre, c.movies
  from counted as c
  on conflict (genre) do update set movies = excluded.movies
  where k.movies <> excluded.movies
),
gone as (
  delete from genre_counts as k
  where (select t.due from turn as t)
    and not exists (select from counted as c where c.genre = k.genre)
)
update genre_counting as c
set
  looked_at  = now(),
  counted_at = case when t.due then now() else c.counted_at end,
  genres     = case
                 when t.due then coalesce((select max(n.genres) from counted as n), 0)
                 else c.genres
               end,
  mark       = :mark
from turn as t
where c.one
returning t.due as counted;
