-- How many of the movies of a list have each genre, decade and half hour (GET /v1/movies with `facets`).

-- name: count_facets(filter, facets, most)
-- \set filter '\'{"title": "amelie", "year_from": 1990, "year_to": 1999}\''
-- \set facets '\'genres,year,runtime\'' \set most 10000
-- set: transaction_read_only = on
-- Returns the values of each of the `facets`, with their number of movies, at most 20: the most frequent ones. Each facet
-- leaves out its own filter and keeps all others. `value` is what the filter takes; so genres with a comma are left out.
-- `total`: the matches of all filters. in_table: about how many rows the table has. If nothing matches, there is one row
-- with nulls.
-- Up to `most` matches are counted. If there are more, the numbers are estimates from the sample of count_movies, the same
-- for all facets and the total. A value that the list is filtered by has at least as many movies as the list.
with matched as materialized (
  select m.genres, m.year, m.runtime
  from movies as m
  where movie_matches(m, :filter)
  limit :most::bigint + 1
),
numbers as materialized (
  select
    (select count(*) from matched) as matches,
    :filter::jsonb ?| '{genres,genres_any}' as has_own_genres,
    :filter::jsonb ?| '{year_from,year_to,years}' as has_own_years,
    :filter::jsonb ?| '{runtime_from,runtime_to,runtimes}' as has_own_runtimes
),
-- The movies of a facet by which the list is filtered; those of the others are those of the list. If the list has more
-- than `most`, these are even more.
own_genres as materialized (
  select m.genres
  from movies as m
  where :facets like '%genres%'
    and :filter::jsonb ?| '{genres,genres_any}'
    and (select n.matches <= :most from numbers as n)
    and movie_matches(m, :filter::jsonb - '{genres,genres_any}'::text[])
  limit :most::bigint + 1
),
own_years as materialized (
  select m.year
  from movies as m
  where :facets like '%year%'
    and :filter::jsonb ?| '{year_from,year_to,years}'
    and (select n.matches <= :most from numbers as n)
    and movie_matches(m, :filter::jsonb - '{year_from,year_to,years}'::text[])
  limit :most::bigint + 1
),
own_runtimes as materialized (
  select m.runtime
  from movies as m
  where :facets like '%runtime%'
    and :filter::jsonb ?| '{runtime_from,runtime_to,runtimes}'
    and (select n.matches <= :most from numbers as n)
    and movie_matches(m, :filter::jsonb - '{runtime_from,runtime_to,runtimes}'::text[])
  limit :most::bigint + 1
),
-- as in count_movies
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
limits as materialized (
  select
    n.*, n.matches > :most as total_is_estimate,
    :facets like '%genres%'
    and greatest(n.matches, (select count(*) from own_genres)) > :most as genres_are_estimates,
    :facets like '%year%'
    and greatest(n.matches, (select count(*) from own_years)) > :most as years_are_estimates,
    :facets like '%runtime%'
    and greatest(n.matches, (select count(*) from own_runtimes)) > :most as runtimes_are_estimates,
    t.pages, t.movies
  from numbers as n
  cross join size as t
),
sample as materialized (
  select m.genres, m.year, m.runtime, f.is_matched, f.is_of_genres, f.is_of_years, f.is_of_runtimes
  from movies as m
    tablesample system ((select 100 * least(1, 10000 / l.movies, 1000 / l.pages) from limits as l))
    repeatable (0)
  cross join lateral (
    values (
      movie_matches(m, :filter),
      movie_matches(m, :filter::jsonb - '{genres,genres_any}'::text[]),
      movie_matches(m, :filter::jsonb - '{year_from,year_to,years}'::text[]),
      movie_matches(m, :filter::jsonb - '{runtime_from,runtime_to,runtimes}'::text[])
    )
  ) as f (is_matched, is_of_genres, is_of_years, is_of_runtimes)
  where (
    select l.total_is_estimate or l.genres_are_estimates or l.years_are_estimates or l.runtimes_are_estimates
    from limits as l
  )
),
-- By how much the numbers of the sample are multiplied; at the end, each number is rounded.
scale as materialized (
  select greatest(l.movies, s.movies) / greatest(s.movies, 1) as factor
  from limits as l
  cross join (select count(*) as movies from sample) as s
),
total as materialized (
  select
    case
      when l.total_is_estimate then greatest(
        :most::bigint + 1, round((select count(*) from sample as s where s.is_matched) * x.factor)
      )
      else l.matches
    end::bigint as movies
  from limits as l
  cross join scale as x
),
combinations as (
  select c.genres, count(*) * 1.0 as movies
  from (
    select c.genres
    from matched as c
    where :facets like '%genres%'
      and (select not l.has_own_genres and not l.genres_are_estimates from limits as l)
    union all
    select c.genres
    from own_genres as c
    where not (select l.genres_are_estimates from limits as l)
  ) as c
  group by c.genres
  union all
  select s.genres, count(*) * (select x.factor from scale as x)
  from sample as s
  where s.is_of_genres and (select l.genres_are_estimates from limits as l)
  group by s.genres
),
spelled as (
  select row_number() over () as combination, c.genres, c.movies
  from combinations as c
),
spellings as (
  select g.spelling, genre_entry(g.spelling) as entry, sum(s.movies) as movies
  from spelled as s
  cross join unnest(s.genres) as g (spelling)
  group by g.spelling
),
genre_values as (
  select n.entry, (array_agg(n.spelling order by n.movies desc, n.spelling collate "C"))[1] as value
  from spellings as n
  where n.spelling not like '%,%'
  group by n.entry
),
genre_counts as (
  -- Of a movie with two spellings of a genre, one counts.
  select f.entry, sum(f.movies) as movies
  from (
    select n.entry, s.combination, min(s.movies) as movies
    from spelled as s
    cross join unnest(s.genres) as g (spelling)
    join spellings as n on n.spelling = g.spelling
    group by n.entry, s.combination
  ) as f
  group by f.entry
),
counted as (
  select
    'genres' as facet, v.value, c.movies, l.genres_are_estimates as is_estimate,
    v.entry in (
      select genre_entry(wanted) from unnest(string_to_array(:filter::jsonb ->> 'genres', ',')) as wanted
    ) or (
      :filter::jsonb ->> 'genres_any' not like '%,%' and v.entry = genre_entry(:filter::jsonb ->> 'genres_any')
    ) as is_wanted
  from genre_counts as c
  join genre_values as v on v.entry = c.entry
  cross join limits as l
  union all
  select
    'year', y.low || '..' || y.low + 9, y.movies, l.years_are_estimates,
    (:filter::jsonb -> 'year_from')::integer >= y.low and (:filter::jsonb -> 'year_to')::integer < y.low + 10
  from limits as l
  cross join lateral (
    select c.year / 10 * 10 as low, count(*) * 1.0 as movies
    from (
      select c.year from matched as c where :facets like '%year%' and not l.has_own_years
      union all
      select c.year from own_years as c
    ) as c
    where not l.years_are_estimates
    group by low
    union all
    select s.year / 10 * 10 as low, count(*) * (select x.factor from scale as x)
    from sample as s
    where s.is_of_years and l.years_are_estimates
    group by low
  ) as y
  union all
  select
    'runtime', r.low || '..' || least(r.low + 29::bigint, 2147483647), r.movies, l.runtimes_are_estimates,
    coalesce((:filter::jsonb -> 'runtime_from')::integer, 0) >= r.low
    and (:filter::jsonb -> 'runtime_to')::integer < r.low + 30::bigint
  from limits as l
  cross join lateral (
    select c.runtime / 30 * 30 as low, count(*) * 1.0 as movies
    from (
      select c.runtime from matched as c where :facets like '%runtime%' and not l.has_own_runtimes
      union all
      select c.runtime from own_runtimes as c
    ) as c
    where not l.runtimes_are_estimates
    group by low
    union all
    select s.runtime / 30 * 30 as low, count(*) * (select x.factor from scale as x)
    from sample as s
    where s.is_of_runtimes and l.runtimes_are_estimates
    group by low
  ) as r
),
ranked as (
  select
    c.facet, c.value, c.is_estimate,
    (case when c.is_wanted then greatest(round(c.movies), t.movies) else round(c.movies) end)::bigint as movies,
    row_number() over (partition by c.facet order by c.movies desc, c.value collate "C") as place
  from counted as c
  cross join total as t
)
select t.movies as total, greatest(l.movies, t.movies)::bigint as in_table, r.facet, r.value, r.movies, r.is_estimate
from total as t
cross join limits as l
left join ranked as r on r.place <= 20;
