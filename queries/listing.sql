-- Lists of movies (GET /v1/movies). A filter that is null matches every movie. The service sends
-- parameters as literals, so PostgreSQL removes the filters that are null and makes a plan for each
-- combination of filters and order.
--
-- For a first page, the service sends sort_movies. If more than 10,000 movies match, it then sends
-- estimate_movies and walk_movies. For a page by cursor, it sends only walk_movies, because the cursor has
-- the total.
--
-- year_from and year_to are the bounds of the years; `years` has the parts of them that match, and is null if
-- all do. In `coalesce`, PostgreSQL expects that half of the movies match; without it, 0.5 %. The same for
-- runtimes.
-- created_at_from, created_at_to, updated_at_from and updated_at_to are bounds, too. Ranges include both ends.
--
-- All three queries have the same filter, between the lines `-- filter` and `-- end of filter`: change it in
-- all three. The check compares them line by line.

-- name: sort_movies(title, genres, genres_any, year_from, year_to, years, runtime_from, runtime_to, runtimes, created_at_from, created_at_to, updated_at_from, updated_at_to, sort, after, after_id, skip, size, most)
-- \set title '\'amelie\'' \set genres null \set genres_any null
-- \set year_from 1990 \set year_to 1999 \set years null
-- \set runtime_from null \set runtime_to null \set runtimes null
-- \set created_at_from null \set created_at_to null
-- \set updated_at_from null \set updated_at_to null \set sort '\'-year\''
-- \set after null \set after_id null \set skip 0 \set size 20 \set most 10000
-- set: transaction_read_only = on
-- Returns the number of matches, counted up to most + 1. If at most `most` movies match, also returns a
-- page: the movies after the movie with the id after_id and the sort value `after` (as text). If there is
-- no page or the page is empty, the result is one row with the total and nulls.
with matching as materialized (
  select m.id, m.title, m.year, m.runtime, m.created_at, m.updated_at
  from movies as m
  where
    -- filter
    (:title::text is null or m.search @@ title_query(:title::text))
    and (:genres::text is null or m.search @@ genres_query(string_to_array(:genres::text, ',')))
    and (:genres_any::text is null or m.search @@ genres_any_query(string_to_array(:genres_any::text, ',')))
    and (:year_from::integer is null or m.year >= :year_from::integer)
    and (:year_to::integer is null or m.year <= :year_to::integer)
    and coalesce(m.year::bigint <@ :years::int8multirange, true)
    and (:runtime_from::integer is null or m.runtime >= :runtime_from::integer)
    and (:runtime_to::integer is null or m.runtime <= :runtime_to::integer)
    and coalesce(m.runtime::bigint <@ :runtimes::int8multirange, true)
    and (:created_at_from::timestamptz is null or m.created_at >= :created_at_from::timestamptz)
    and (:created_at_to::timestamptz is null or m.created_at <= :created_at_to::timestamptz)
    and (:updated_at_from::timestamptz is null or m.updated_at >= :updated_at_from::timestamptz)
    and (:updated_at_to::timestamptz is null or m.updated_at <= :updated_at_to::timestamptz)
    -- end of filter
  limit :most::bigint + 1
),
counted as (
  select count(*) as total
  from matching
),
page as (
  select m.id, row_number() over () as place
  from (
    select m.id
    from matching as m
    where (select c.total from counted as c) <= :most
      and (:after_id::bigint is null or case :sort
        when 'id' then m.id > :after_id::bigint
        when '-id' then m.id < :after_id::bigint
        when 'title' then (m.title, m.id) > (:after::text, :after_id::bigint)
        when '-title' then (m.title, m.id) < (:after::text, :after_id::bigint)
        when 'year' then (m.year, m.id) > (:after::text::integer, :after_id::bigint)
        when '-year' then (m.year, m.id) < (:after::text::integer, :after_id::bigint)
        when 'runtime' then (m.runtime, m.id) > (:after::text::integer, :after_id::bigint)
        when '-runtime' then (m.runtime, m.id) < (:after::text::integer, :after_id::bigint)
        when 'created_at' then (m.created_at, m.id) > (:after::text::timestamptz, :after_id::bigint)
        when '-created_at' then (m.created_at, m.id) < (:after::text::timestamptz, :after_id::bigint)
        when 'updated_at' then (m.updated_at, m.id) > (:after::text::timestamptz, :after_id::bigint)
        when '-updated_at' then (m.updated_at, m.id) < (:after::text::timestamptz, :after_id::bigint)
        when 'relevance' then (search_rank(m.title, m.year), m.id) > (:after::text::bigint, :after_id::bigint)
        when '-relevance' then (search_rank(m.title, m.year), m.id) < (:after::text::bigint, :after_id::bigint)
      end)
    order by
      case :sort when 'title' then m.title end,
      case :sort when '-title' then m.title end desc,
      case :sort when 'year' then m.year when 'runtime' then m.runtime end,
      case :sort when '-year' then m.year when '-runtime' then m.runtime end desc,
      case :sort when 'created_at' then m.created_at when 'updated_at' then m.updated_at end,
      case :sort when '-created_at' then m.created_at when '-updated_at' then m.updated_at end desc,
      case :sort when 'relevance' then search_rank(m.title, m.year) end,
      case :sort when '-relevance' then search_rank(m.title, m.year) end desc,
      case when :sort in ('-id', '-title', '-year', '-runtime', '-created_at', '-updated_at', '-relevance') then m.id end desc,
      m.id
    limit :size offset :skip
  ) as m
)
select
  c.total,
  m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
from counted as c
left join page as p on true
left join movies as m on m.id = p.id
order by p.place;

-- name: estimate_movies(title, genres, genres_any, year_from, year_to, years, runtime_from, runtime_to, runtimes, created_at_from, created_at_to, updated_at_from, updated_at_to)
-- \set title '\'amelie\'' \set genres null \set genres_any null
-- \set year_from 1990 \set year_to 1999 \set years null
-- \set runtime_from null \set runtime_to null \set runtimes null
-- \set created_at_from null \set created_at_to null
-- \set updated_at_from null \set updated_at_to null
-- set: transaction_read_only = on
-- Estimates the number of matches from a sample of about 10,000 movies. The sample is the same each
-- time, so an unchanged catalogue gives the same estimate.
select
  round(
    count(*) filter (
      where
        -- filter
        (:title::text is null or m.search @@ title_query(:title::text))
        and (:genres::text is null or m.search @@ genres_query(string_to_array(:genres::text, ',')))
        and (:genres_any::text is null or m.search @@ genres_any_query(string_to_array(:genres_any::text, ',')))
        and (:year_from::integer is null or m.year >= :year_from::integer)
        and (:year_to::integer is null or m.year <= :year_to::integer)
        and coalesce(m.year::bigint <@ :years::int8multirange, true)
        and (:runtime_from::integer is null or m.runtime >= :runtime_from::integer)
        and (:runtime_to::integer is null or m.runtime <= :runtime_to::integer)
        and coalesce(m.runtime::bigint <@ :runtimes::int8multirange, true)
        and (:created_at_from::timestamptz is null or m.created_at >= :created_at_from::timestamptz)
        and (:created_at_to::timestamptz is null or m.created_at <= :created_at_to::timestamptz)
        and (:updated_at_from::timestamptz is null or m.updated_at >= :updated_at_from::timestamptz)
        and (:updated_at_to::timestamptz is null or m.updated_at <= :updated_at_to::timestamptz)
        -- end of filter
    )
    * greatest(
        (select c.reltuples from pg_class as c where c.oid = 'movies'::regclass), count(*)
      )
    / greatest(count(*), 1)
  )::bigint as total
from movies as m
  tablesample system (
    (
      select 100 * least(1, 10000 / greatest(c.reltuples, 1))
      from pg_class as c
      where c.oid = 'movies'::regclass
    )
  ) repeatable (0);

-- name: walk_movies(title, genres, genres_any, year_from, year_to, years, runtime_from, runtime_to, runtimes, created_at_from, created_at_to, updated_at_from, updated_at_to, sort, after, after_id, skip, size)
-- \set title '\'amelie\'' \set genres null \set genres_any null
-- \set year_from 1990 \set year_to 1999 \set years null
-- \set runtime_from null \set runtime_to null \set runtimes null
-- \set created_at_from null \set created_at_to null
-- \set updated_at_from null \set updated_at_to null \set sort '\'-year\''
-- \set after null \set after_id null \set skip 0 \set size 20
-- set: transaction_read_only = on
-- set: statement_timeout = 100ms
-- These costs are for data in memory. With 2 million movies, they lower the 99th percentile of the
-- highest page numbers from 247 to 156 ms, and of all pages from 143 to 121 ms (1,744 requests).
-- set: seq_page_cost = 0.3
-- set: random_page_cost = 0.15
-- set: effective_cache_size = 1MB
-- A single page must not keep several cores busy.
-- set: max_parallel_workers_per_gather = 0
-- Only for streams, which read all rows with a cursor: plan for all of them, and not for the first 10 %;
-- and allow for clients that read slowly.
-- set: cursor_tuple_fraction = 1
-- set: idle_in_transaction_session_timeout = 0
-- Returns the same page without counting: walks the index of the sort order, from the movie after_id on,
-- and takes the movies that match. The walk is slow if the first match is far away. If it exceeds this
-- statement_timeout, the service sends sort_movies instead. If more than 100,000 movies match, sorting
-- would be slower, so the service sends this query with the statement_timeout of config.toml.
-- A stream (NDJSON or CSV) reads all matches from one snapshot: it sends this query once, with size null and
-- for a cursor, and fetches 250 rows at a time, each time with a statement_timeout of 20 s.
select m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
from movies as m
where
  -- filter
  (:title::text is null or m.search @@ title_query(:title::text))
  and (:genres::text is null or m.search @@ genres_query(string_to_array(:genres::text, ',')))
  and (:genres_any::text is null or m.search @@ genres_any_query(string_to_array(:genres_any::text, ',')))
  and (:year_from::integer is null or m.year >= :year_from::integer)
  and (:year_to::integer is null or m.year <= :year_to::integer)
  and coalesce(m.year::bigint <@ :years::int8multirange, true)
  and (:runtime_from::integer is null or m.runtime >= :runtime_from::integer)
  and (:runtime_to::integer is null or m.runtime <= :runtime_to::integer)
  and coalesce(m.runtime::bigint <@ :runtimes::int8multirange, true)
  and (:created_at_from::timestamptz is null or m.created_at >= :created_at_from::timestamptz)
  and (:created_at_to::timestamptz is null or m.created_at <= :created_at_to::timestamptz)
  and (:updated_at_from::timestamptz is null or m.updated_at >= :updated_at_from::timestamptz)
  and (:updated_at_to::timestamptz is null or m.updated_at <= :updated_at_to::timestamptz)
  -- end of filter
  and (:after_id::bigint is null or case :sort
    when 'id' then m.id > :after_id::bigint
    when '-id' then m.id < :after_id::bigint
    when 'title' then (m.title, m.id) > (:after::text, :after_id::bigint)
    when '-title' then (m.title, m.id) < (:after::text, :after_id::bigint)
    when 'year' then (m.year, m.id) > (:after::text::integer, :after_id::bigint)
    when '-year' then (m.year, m.id) < (:after::text::integer, :after_id::bigint)
    when 'runtime' then (m.runtime, m.id) > (:after::text::integer, :after_id::bigint)
    when '-runtime' then (m.runtime, m.id) < (:after::text::integer, :after_id::bigint)
    when 'created_at' then (m.created_at, m.id) > (:after::text::timestamptz, :after_id::bigint)
    when '-created_at' then (m.created_at, m.id) < (:after::text::timestamptz, :after_id::bigint)
    when 'updated_at' then (m.updated_at, m.id) > (:after::text::timestamptz, :after_id::bigint)
    when '-updated_at' then (m.updated_at, m.id) < (:after::text::timestamptz, :after_id::bigint)
    when 'relevance' then (search_rank(m.title, m.year), m.id) > (:after::text::bigint, :after_id::bigint)
    when '-relevance' then (search_rank(m.title, m.year), m.id) < (:after::text::bigint, :after_id::bigint)
  end)
order by
  case :sort when 'title' then m.title end,
  case :sort when '-title' then m.title end desc,
  case :sort when 'year' then m.year when 'runtime' then m.runtime end,
  case :sort when '-year' then m.year when '-runtime' then m.runtime end desc,
  case :sort when 'created_at' then m.created_at when 'updated_at' then m.updated_at end,
  case :sort when '-created_at' then m.created_at when '-updated_at' then m.updated_at end desc,
  case :sort when 'relevance' then search_rank(m.title, m.year) end,
  case :sort when '-relevance' then search_rank(m.title, m.year) end desc,
  case when :sort in ('-id', '-title', '-year', '-runtime', '-created_at', '-updated_at', '-relevance') then m.id end desc,
  m.id
limit :size offset :skip;
