-- Import and export (`python -m service import` and `export`), each in one transaction that may take
-- hours, so timeouts of the role and the database are disabled.

-- name: reserve_movie_ids(highest)
-- set: statement_timeout = 0
-- \set highest 1000
-- Moves the sequence to `highest` or beyond, so that new movies get higher ids than imported movies. A
-- rollback of the import does not undo this. The sequence must never go back, and setval would move it
-- back if a writer had taken a higher id in between. So nextval takes the ids one by one, up to a million
-- (0.3 s). If more are missing, setval skips them: in so short a time, writers cannot take a million ids.
-- An advisory lock, held until the import ends, prevents two imports from skipping ids at the same time.
-- Each step reads a row of the previous step, so that PostgreSQL runs the steps in this order.
with locked as materialized (
  select
    case when :highest - s.last_value > 1000000
      then pg_advisory_xact_lock(hashtextextended('reserve_movie_ids', 0)) is not null
    end as may_skip
  from movies_id_seq as s
),
skipped as materialized (
  select (
    select setval('movies_id_seq', :highest)
    from movies_id_seq as s
    where l.may_skip and :highest - s.last_value > 1000000
  ) as last_id
  from locked as l
)
select count(nextval('movies_id_seq')) as drawn
from skipped as l
cross join lateral generate_series(
  1,
  (
    select :highest - case when s.is_called then s.last_value else s.last_value - 1 end
    from movies_id_seq as s
    where l.last_id is null
  )
);

-- name: find_taken_movies(movies)
-- set: statement_timeout = 0
-- \set movies '\'[{"title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"], "external_id": "imdb:tt3521164"}]\''
-- Of the rows that import_movies would get, returns the positions (from 0) of those whose id or external id a movie has,
-- with the reasons. What another session inserts afterwards is found by import_movies.
with new as materialized (
  select n.number - 1 as position, (n.movie ->> 'id')::bigint as id, n.movie ->> 'external_id' as external_id
  from jsonb_array_elements(:movies) with ordinality as n (movie, number)
)
select
  n.position,
  array_remove(array[
    case when i.id is not null then 'id: another movie has it' end,
    case when e.id is not null then 'external_id: another movie has it; --update would change that movie' end
  ], null) as reasons
from new as n
left join movies as i on i.id = n.id
left join movies as e on e.external_id = n.external_id
where i.id is not null
  or e.id is not null;

-- name: import_movies(movies)
-- Before version 18, PostgreSQL keeps the memory in which each chunk's rows wait for the triggers until the end of the
-- import: with a work_mem of 4 MB, 10 million rows would take 4 GB.
-- set: work_mem = 64kB
-- set: statement_timeout = 0
-- \set movies '\'[{"title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"]}]\''
-- Rows of an export have their own id, version and times. Other rows get the defaults of the table.
insert into movies (id, title, year, runtime, genres, external_id, version, created_at, updated_at)
overriding system value
select
  coalesce(n.id, nextval('movies_id_seq')),
  n.title, n.year, n.runtime, n.genres, n.external_id,
  coalesce(n.version, 1), coalesce(n.created_at, now()), coalesce(n.updated_at, now())
from jsonb_to_recordset(:movies) as n (
  id bigint, title text, year integer, runtime integer, genres text[], external_id text,
  version integer, created_at timestamptz, updated_at timestamptz
);

-- name: put_imported_movies(movies)
-- set: work_mem = 64kB
-- set: statement_timeout = 0
-- \set movies '\'[{"title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"], "external_id": "imdb:tt3521164"}]\''
-- For `import --update`: creates the movies whose external ids are not there, and changes those that differ; the others
-- are not written. Returns how many were created and changed. If another session has created one of them meanwhile, the
-- insert waits for its commit and then changes that one. Two updates at once could wait for each other, so an advisory
-- lock, held until the update ends, lets one after the other run. A service that starts sends no movies, to check the
-- query, and must not wait for the end of an update.
with new as materialized (
  select n.title, n.year, n.runtime, n.genres, n.external_id
  from jsonb_to_recordset(:movies)
    as n (title text, year integer, runtime integer, genres text[], external_id text)
),
locked as materialized (
  select pg_advisory_xact_lock(hashtextextended('put_imported_movies', 1))
  where exists (select from new as n)
),
written as (
  insert into movies as o (title, year, runtime, genres, external_id)
  select n.title, n.year, n.runtime, n.genres, n.external_id
  from locked as l
  cross join new as n
  left join movies as m on m.external_id = n.external_id
  where m.id is null
    or (m.title, m.year, m.runtime, m.genres) is distinct from (n.title, n.year, n.runtime, n.genres)
  on conflict (external_id) where external_id is not null do update
  set (title, year, runtime, genres) = (excluded.title, excluded.year, excluded.runtime, excluded.genres)
  where (o.title, o.year, o.runtime, o.genres)
    is distinct from (excluded.title, excluded.year, excluded.runtime, excluded.genres)
  returning o.version
)
select
  count(*) filter (where w.version = 1)::integer as created,
  count(*) filter (where w.version > 1)::integer as changed
from written as w;

-- name: postpone_words()
-- Until the end of the transaction, the triggers of movies add no words to search_words (for suggestions): for each
-- chunk, they would look all its words up, a fourth of the import's time.
select set_config('catalogue.adds_words_later', 'on', true) as postponed;

-- name: add_postponed_words(run)
-- set: statement_timeout = 0
-- \set run true
-- Adds the words of the rows that this transaction has inserted, whose age is not above that of the transaction.
-- With `run` = false, as the check sends it, it does nothing.
select add_search_words('select search from movies where age(xmin) <= 0') as words
where :run::boolean;

-- name: analyze_movies()
-- set: statement_timeout = 0
-- Updates the planner's statistics at the end of an import, before its commit. With skip_locked, it does
-- nothing if another session holds a lock that conflicts, such as `vacuum` or `create index concurrently`.
-- Waiting for the latter would be a deadlock, because it waits for the import. Autovacuum analyzes the
-- table later.
analyze (skip_locked) movies;

-- name: export_movies(after_id, size)
-- set: transaction_read_only = on
-- set: statement_timeout = 0
-- \set after_id 0
-- \set size 1000
-- Returns the next movies by id.
select m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
from movies as m
where m.id > :after_id::bigint
order by m.id
limit :size;
