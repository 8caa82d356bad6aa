-- `-- set:` lines are sent with a query; `-- \set` lines are for psql.
--
-- Lists of movies (GET /v1/movies), and suggestions for a search that finds nothing. The filter of all queries is the
-- function movie_matches, and a place in the order of lists the function movie_follows; `\sf movie_matches(movies,jsonb)`
-- shows which members `filter` may have, and docs/dbas.md how to change the function. The service sends parameters as
-- literals, and PostgreSQL puts the text of the functions in place of their calls: it removes the filters that are not set,
-- and makes a plan for each combination of filters and order.
--
-- For a first page, the service sends count_movies, and then sort_movies or walk_movies. A page by cursor is one
-- statement, because the cursor has the total. To sort n matches costs about as much as to walk past 4n rows of the
-- index, and until a page is full, a walk passes about (page size) x (rows of the table) / n. The service sends the
-- cheaper one.

-- name: count_movies(filter, most)
-- \set filter '\'{"title": "amelie", "year_from": 1990, "year_to": 1999}\'' \set most 10000
-- set: transaction_read_only = on
-- Returns the number of matches if there are at most `most`, and otherwise an estimate from a sample of about 10,000
-- movies; and about how many rows the table has. The sample is the same each time, so an unchanged catalogue gives the
-- same estimate. As the planner does, `size` multiplies the rows of a page at the last analyze by the pages of now; in
-- a table that was never analyzed, a page has about 40 movies. At most 1000 pages are read, whatever the statistics are.
with size as materialized (
  select
    p.pages,
    p.pages * case when c.reltuples > 0 then c.reltuples::numeric / greatest(c.relpages, 1) else 40 end as movies
  from pg_class as c
  cross join lateral (
    select greatest(1, pg_relation_size(c.oid) / current_setting('block_size')::numeric) as pages
  ) as p
  where c.oid = 'movies'::regclass
)
select
  case when counted.total <= :most then counted.total else greatest(counted.total, (
    select
      round(
        count(*) filter (
          where movie_matches(m, :filter)
        )
        * greatest(t.movies, count(*)) / greatest(count(*), 1)
      )
    from movies as m
      tablesample system ((select 100 * least(1, 10000 / t.movies, 1000 / t.pages) from size as t))
      repeatable (0)
  )) end::bigint as total,
  greatest(t.movies, counted.total)::bigint as movies
from (
  select count(*) as total
  from (
    select
    from movies as m
    where movie_matches(m, :filter)
    limit :most::bigint + 1
  ) as m
) as counted
cross join size as t;

-- name: sort_movies(filter, sort, after, after_id, skip, size)
-- \set filter '\'{"title": "amelie", "year_from": 1990, "year_to": 1999}\''
-- \set sort '\'-year\'' \set after null \set after_id null \set skip 0 \set size 20
-- set: transaction_read_only = on
-- Returns a page of few matches: the movies after the movie with the id after_id and the sort value `after` (as text).
-- `offset 0` makes PostgreSQL find all matches first, and then sort them.
select m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
from (
  select m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
  from movies as m
  where movie_matches(m, :filter)
  offset 0
) as m
where movie_follows(:sort, :after, :after_id, m.id, m.title, m.year, m.runtime, m.created_at, m.updated_at)
order by
  case :sort when 'title' then m.title end,
  case :sort when '-title' then m.title end desc,
  case :sort when 'year' then m.year when 'runtime' then m.runtime end,
  case :sort when '-year' then m.year when '-runtime' then m.runtime end desc,
  case :sort when 'created_at' then m.created_at when 'updated_at' then m.updated_at end,
  case :sort when '-created_at' then m.created_at when '-updated_at' then m.updated_at end desc,
  case :sort when 'relevance' then search_rank(m.title, m.year) end,
  case :sort when '-relevance' then search_rank(m.title, m.year) end desc,
  case when :sort like '-%' then m.id end desc,
  m.id
limit :size offset :skip;

-- name: walk_movies(filter, sort, after, after_id, skip, size)
-- \set filter '\'{"title": "amelie", "year_from": 1990, "year_to": 1999}\''
-- \set sort '\'-year\'' \set after null \set after_id null \set skip 0 \set size 20
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
-- Returns a page of many matches: walks the index of the sort order, from the movie after_id on, and takes the movies
-- that match. The walk is slow if the matches lie together, far from its start. If it exceeds this statement_timeout,
-- the service sends sort_movies instead. If more than 100,000 movies match, sorting would be slower, so the service
-- sends this query with the statement_timeout of config.toml.
-- A stream (NDJSON or CSV) reads all matches from one snapshot: it sends this query once, with size null and
-- for a cursor, and fetches 250 rows at a time, each time with a statement_timeout of 20 s.
select m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
from movies as m
where movie_matches(m, :filter)
  and movie_follows(:sort, :after, :after_id, m.id, m.title, m.year, m.runtime, m.created_at, m.updated_at)
order by
  case :sort when 'title' then m.title end,
  case :sort when '-title' then m.title end desc,
  case :sort when 'year' then m.year when 'runtime' then m.runtime end,
  case :sort when '-year' then m.year when '-runtime' then m.runtime end desc,
  case :sort when 'created_at' then m.created_at when 'updated_at' then m.updated_at end,
  case :sort when '-created_at' then m.created_at when '-updated_at' then m.updated_at end desc,
  case :sort when 'relevance' then search_rank(m.title, m.year) end,
  case :sort when '-relevance' then search_rank(m.title, m.year) end desc,
  case when :sort like '-%' then m.id end desc,
  m.id
limit :size offset :skip;

-- name: suggest_movies(filter)
-- \set filter '\'{"title": "casablnca", "year_from": 1930, "year_to": 1949}\''
-- set: transaction_read_only = on
-- set: statement_timeout = 500ms
-- Returns up to five movies whose titles come closest to the search, the closest first; they match the other filters.
-- The functions are in the migrations. closest_movies bounds the work: for 2 million movies it takes 6 ms, at most some
-- 50 ms, and 105 ms with a filter that almost no movie matches. Only if the server is overloaded does the query end by its
-- statement_timeout; then the list comes without suggestions.
-- Spellings of one title, such as Snow-White and Snow White, are suggested once: only the first 50 titles are compared.
select m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
from (
  select (array_agg(c.id order by c.place))[1] as id, min(c.place) as place
  from (
    select m.id, m.title, row_number() over (order by c.likeness desc, search_rank(m.title, m.year), m.title) as place
    from closest_movies(:filter::jsonb ->> 'title', :filter::jsonb) as c
    join movies as m on m.id = c.id
    where movie_matches(m, :filter::jsonb - 'title')
    order by place
    limit 50
  ) as c
  group by translate(mark_signs(fold_letters(c.title)), ' +-', '')
  order by place
  limit 5
) as s
join movies as m on m.id = s.id
order by s.place;
