-- How many of the movies of a list have each genre, decade and half hour (GET /v1/movies with `facets`).

-- name: count_facets(filter, facets, most)
-- \set filter '\'{"title": "amelie", "year_from": 1990, "year_to": 1999}\''
-- \set facets '\'genres,year,runtime\'' \set most 10000
-- set: transaction_read_only = on
-- These costs are for data in memory, as in walk_movies: the mean of 90 filters of 2 million movies falls by 9 %.
-- set: seq_page_cost = 0.3
-- set: random_page_cost = 0.15
-- Returns the values of each of the `facets`, with their number of movies, at most 20: the most frequent ones. Each facet
-- leaves out its own filter and keeps all others. `value` is what the filter takes; so genres with a comma are left out.
-- `total`: the matches of all filters. in_table: about how many rows the table has. If nothing matches, there is one row
-- with nulls.
-- Up to `most` matches are counted. If there are more, the numbers are estimates from the sample of sort_movies, the same
-- for all facets and the total. A value that the list is filtered by has at least as many movies as the list.
--
-- The steps: `matched` and `own` find the movies, `sources` chooses what each facet is counted in, `counted` has these
-- movies, `ranges` and `genres` count them, and the rest makes the rows.
with matched as materialized (
  select m.genres, m.year, m.runtime
  from movies as m
  where movie_matches(m.*, :filter)
  limit :most::bigint + 1
),
-- The movies of each facet that the list is filtered by; one column of each row is set. If the list has more than `most`
-- movies, these are even more, and nobody counts them.
own as materialized (
  (
    select m.genres, null::integer as year, null::integer as runtime
    from movies as m
    where :facets like '%genres%'
      and :filter::jsonb ?| '{genres,genres_any}'
      and (select count(*) <= :most from matched)
      and movie_matches(m.*, :filter::jsonb - '{genres,genres_any}'::text[])
    limit :most::bigint + 1
  )
  union all
  (
    select null, m.year, null
    from movies as m
    where :facets like '%year%'
      and :filter::jsonb ?| '{year_from,year_to,years}'
      and (select count(*) <= :most from matched)
      and movie_matches(m.*, :filter::jsonb - '{year_from,year_to,years}'::text[])
    limit :most::bigint + 1
  )
  union all
  (
    select null, null, m.runtime
    from movies as m
    where :facets like '%runtime%'
      and :filter::jsonb ?| '{runtime_from,runtime_to,runtimes}'
      and (select count(*) <= :most from matched)
      and movie_matches(m.*, :filter::jsonb - '{runtime_from,runtime_to,runtimes}'::text[])
    limit :most::bigint + 1
  )
),
-- as in sort_movies
size as materialized (
  select
    p.pages,
    p.pages * case when c.reltuples > 0 then c.reltuples::numeric / greatest(c.relpages, 1) else 40 end as movies
  from pg_class as c
  cross join lateral (
    select greatest(1, pg_relation_size(c.oid) / current_setting('block_size')::numeric) as pages
  ) as p
  where c.oid = 'movies'::regclass
),
-- What each facet is counted in; null: it is not requested.
sources as materialized (
  select
    l.matches, t.pages, t.movies,
    case
      when :facets not like '%genres%' then null
      when greatest(l.matches, o.genres) > :most then 'sample'
      when :filter::jsonb ?| '{genres,genres_any}' then 'own'
      else 'matched'
    end as genres,
    case
      when :facets not like '%year%' then null
      when greatest(l.matches, o.years) > :most then 'sample'
      when :filter::jsonb ?| '{year_from,year_to,years}' then 'own'
      else 'matched'
    end as year,
    case
      when :facets not like '%runtime%' then null
      when greatest(l.matches, o.runtimes) > :most then 'sample'
      when :filter::jsonb ?| '{runtime_from,runtime_to,runtimes}' then 'own'
      else 'matched'
    end as runtime
  from (select count(*) as matches from matched) as l
  cross join (select count(o.genres) as genres, count(o.year) as years, count(o.runtime) as runtimes from own as o) as o
  cross join size as t
),
-- Also the movies that match but for the filter of one facet.
sample as materialized (
  select
    m.genres, m.year, m.runtime, movie_matches(m.*, :filter) as is_matched,
    :filter::jsonb ?| '{genres,genres_any}' and movie_matches(m.*, :filter::jsonb - '{genres,genres_any}'::text[])
      as is_of_genres,
    :filter::jsonb ?| '{year_from,year_to,years}' and movie_matches(m.*, :filter::jsonb - '{year_from,year_to,years}'::text[])
      as is_of_year,
    :filter::jsonb ?| '{runtime_from,runtime_to,runtimes}'
      and movie_matches(m.*, :filter::jsonb - '{runtime_from,runtime_to,runtimes}'::text[]) as is_of_runtime
  from movies as m
    tablesample system ((select 100 * least(1, 10000 / s.movies, 1000 / s.pages) from sources as s))
    repeatable (0)
  where (select 'sample' in (s.genres, s.year, s.runtime) from sources as s)
),
-- `factor`: by how much the numbers of the sample are multiplied.
total as materialized (
  select
    x.factor,
    case
      when s.matches > :most then greatest(:most::bigint + 1, round(f.matches * x.factor))
      else s.matches
    end::bigint as movies
  from sources as s
  cross join (select count(*) as movies, count(*) filter (where f.is_matched) as matches from sample as f) as f
  cross join lateral (values (greatest(s.movies, f.movies) / greatest(f.movies, 1))) as x (factor)
),
-- A column is null if the movie does not count in this facet.
counted as materialized (
  select
    case s.genres when 'matched' then m.genres end as genres,
    case s.year when 'matched' then m.year / 10 * 10 end as decade,
    case s.runtime when 'matched' then m.runtime / 30 * 30 end as half_hour
  from sources as s
  join matched as m on s.matches <= :most
  union all
  select
    case s.genres when 'own' then o.genres end,
    case s.year when 'own' then o.year / 10 * 10 end,
    case s.runtime when 'own' then o.runtime / 30 * 30 end
  from sources as s
  join own as o on 'own' in (s.genres, s.year, s.runtime)
  union all
  select
    case when s.genres = 'sample' and (f.is_matched or f.is_of_genres) then f.genres end,
    case when s.year = 'sample' and (f.is_matched or f.is_of_year) then f.year / 10 * 10 end,
    case when s.runtime = 'sample' and (f.is_matched or f.is_of_runtime) then f.runtime / 30 * 30 end
  from sources as s
  cross join sample as f
),
ranges as (
  select 'year' as facet, c.decade as low, 10::bigint as width, count(*) as movies
  from counted as c
  where c.decade is not null
  group by c.decade
  union all
  select 'runtime', c.half_hour, 30, count(*)
  from counted as c
  where c.half_hour is not null
  group by c.half_hour
),
spellings as materialized (
  select g.spelling, genre_entry(g.spelling) as entry, count(*) as movies
  from (select unnest(c.genres) as spelling from counted as c) as g
  group by g.spelling
),
-- Of a movie with two spellings of a genre, one counts: how many are too many.
repeated as (
  select n.entry, count(*) - count(distinct c.movie) as movies
  from (select n.spelling, n.entry, count(*) over (partition by n.entry) as spellings from spellings as n) as n
  join (
    select c.movie, unnest(c.genres) as spelling
    from (select row_number() over () as movie, c.genres from counted as c) as c
  ) as c on c.spelling = n.spelling
  where n.spellings > 1
  group by n.entry
),
genres as (
  select
    n.entry, sum(n.movies) - coalesce(max(r.movies), 0) as movies,
    (array_agg(n.spelling order by n.movies desc, n.spelling collate "C") filter (where n.spelling not like '%,%'))[1] as value
  from spellings as n
  left join repeated as r on r.entry = n.entry
  group by n.entry
),
facets as (
  select
    'genres' as facet, g.value, g.movies, s.genres = 'sample' as is_estimate,
    g.entry in (
      select genre_entry(wanted) from unnest(string_to_array(:filter::jsonb ->> 'genres', ',')) as wanted
    ) or (
      :filter::jsonb ->> 'genres_any' not like '%,%' and g.entry = genre_entry(:filter::jsonb ->> 'genres_any')
    ) as is_wanted
  from genres as g
  cross join sources as s
  where g.value is not null
  union all
  select
    r.facet, r.low || '..' || least(r.low + r.width - 1, 2147483647), r.movies,
    case r.facet when 'year' then s.year else s.runtime end = 'sample',
    coalesce((:filter::jsonb -> (r.facet || '_from'))::integer, 0) >= r.low
    and (:filter::jsonb -> (r.facet || '_to'))::integer < r.low + r.width
  from ranges as r
  cross join sources as s
),
ranked as (
  select
    f.facet, f.value, f.is_estimate, case when f.is_wanted then greatest(n.movies, t.movies) else n.movies end as movies,
    row_number() over (partition by f.facet order by f.movies desc, f.value collate "C") as place
  from facets as f
  cross join total as t
  cross join lateral (select round(f.movies * case when f.is_estimate then t.factor else 1 end)::bigint as movies) as n
)
select t.movies as total, greatest(s.movies, t.movies)::bigint as in_table, r.facet, r.value, r.movies, r.is_estimate
from total as t
cross join sources as s
left join ranked as r on r.place <= 20;
