-- `-- set:` lines are sent with a query; `-- \set` lines are for psql.
--
-- Lists of movies (GET /v1/movies), and suggestions for a search that finds nothing. The filter of all queries is the
-- function movie_matches, the orders are in movie_order, and a place in an order is movie_follows; docs/dbas.md says how to
-- change them. The service sends parameters as literals, and PostgreSQL puts the text of the functions in place of their
-- calls: it removes the filters that are not set, and makes a plan for each combination of filters and order.
--
-- For a first page, the service sends sort_movies. If more than 10,000 movies match, this only says so, and a second
-- statement fetches the page, as does the only one of a page by cursor, which has the total: sort_movies without `most`, or
-- walk_movies. To sort n matches costs about as much as to walk past 4n rows of the index, and until a page is full, a walk
-- passes about (page size) x (rows of the table) / n. The service sends the cheaper one; but a search in the order of
-- relevance begins with the shortest titles, and no title is shorter than the words that it has: a walk would pass all
-- shorter ones, so the matches are sorted.

-- name: sort_movies(filter, most, sort, after, after_id, skip, size)
-- \set filter '\'{"title": "amelie", "year_from": 1990, "year_to": 1999}\'' \set most 10000
-- \set sort '\'-year\'' \set after null \set after_id null \set skip 0 \set size 20
-- set: transaction_read_only = on
-- Finds the matches, counts and sorts them. In each row, total: their number if there are at most `most` (null: any
-- number), and otherwise an estimate from a sample of about 10,000 movies; the sample is the same each time, so an
-- unchanged catalogue gives the same estimate. in_table: about how many rows the table has.
-- Then comes a page: the movies after the movie with the id after_id and the sort value `after` (as text). If there are
-- more than `most` matches, or none on this page, there is one row with nulls.
-- size: as the planner does, it multiplies the rows of a page at the last analyze by the pages of now; in a table that was
-- never analyzed, a page has about 40 movies. Whatever the statistics are, the samples read at most 50 and 1,000 pages.
-- rough: if at least 40 of about 500 movies match, and so more than 4 x `most` of all, nobody needs to count them.
-- matched: until the page is chosen, a match is only its id and what it is sorted by.
with size as materialized (
  select
    p.pages,
    p.pages * case when c.reltuples > 0 then c.reltuples::numeric / greatest(c.relpages, 1) else 40 end as movies
  from pg_class as c
  cross join lateral (
    select greatest(1, pg_relation_size(c.oid) / current_setting('block_size')::numeric) as pages
  ) as p
  where c.oid = 'movies'::regclass
),
rough as materialized (
  select (s.matches >= 40 and s.matches * t.movies / greatest(s.movies, 1) > 4 * :most::bigint) is true as is_long
  from size as t
  cross join (
    select count(*) as movies, count(*) filter (where movie_matches(m.*, :filter)) as matches
    from movies as m
      tablesample system ((select 100 * least(1, 500 / t.movies, 50 / t.pages) from size as t))
      repeatable (0)
  ) as s
),
matched as materialized (
  select
    m.id, movie_follows(:sort, :after, :after_id, m.id, m.title, m.year, m.runtime, m.created_at, m.updated_at) as follows,
    o.title_up, o.number_up, o.time_up, o.rank_up, o.title_down, o.number_down, o.time_down, o.rank_down, o.id_down
  from movies as m
  cross join movie_order(:sort, m.id, m.title, m.year, m.runtime, m.created_at, m.updated_at) as o
  where movie_matches(m.*, :filter)
    and (select not r.is_long from rough as r)
  limit :most::bigint + 1
),
counted as materialized (
  select t.movies, m.matches, (r.is_long or m.matches > :most::bigint) is not true as is_exact
  from size as t
  cross join rough as r
  cross join (select count(*) as matches from matched) as m
)
select
  case when c.is_exact then c.matches else greatest(:most::bigint + 1, (
    select
      round(
        count(*) filter (
          where movie_matches(m.*, :filter)
        )
        * greatest(c.movies, count(*)) / greatest(count(*), 1)
      )
    from movies as m
      tablesample system ((select 100 * least(1, 10000 / t.movies, 1000 / t.pages) from size as t))
      repeatable (0)
  )) end::bigint as total,
  greatest(c.movies, c.matches)::bigint as in_table,
  m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
from counted as c
left join unnest(
  array(
    select m.id
    from matched as m
    where m.follows
      and (select c.is_exact from counted as c)
    order by m.title_up, m.number_up, m.time_up, m.rank_up,
      m.title_down desc, m.number_down desc, m.time_down desc, m.rank_down desc, m.id_down desc, m.id
    limit :size offset :skip
  )
) with ordinality as p (id, place) on true
left join movies as m on m.id = p.id
order by p.place;

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
cross join movie_order(:sort, m.id, m.title, m.year, m.runtime, m.created_at, m.updated_at) as o
where movie_matches(m.*, :filter)
  and movie_follows(:sort, :after, :after_id, m.id, m.title, m.year, m.runtime, m.created_at, m.updated_at)
order by o.title_up, o.number_up, o.time_up, o.rank_up,
  o.title_down desc, o.number_down desc, o.time_down desc, o.rank_down desc, o.id_down desc, m.id
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
    where movie_matches(m.*, :filter::jsonb - 'title')
    order by place
    limit 50
  ) as c
  group by translate(mark_signs(fold_letters(c.title)), ' +-', '')
  order by place
  limit 5
) as s
join movies as m on m.id = s.id
order by s.place;
