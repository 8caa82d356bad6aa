-- Import and export: `python -m service import` and `export`, each in one transaction, which may take
-- hours: no timeout of the role or the database holds for them.

-- name: reserve_movie_ids(highest)
-- set: statement_timeout = 0
-- \set highest 1000
-- Moves the sequence to `highest` or beyond, for good: new movies get higher ids than imported ones.
-- The sequence never goes back, although setval could set it back: up to a million ids are drawn one
-- by one (0.3 s), as for new movies. Where more are missing, setval leaps, further ahead than writers
-- can draw meanwhile. Two imports must not leap at once, so a lock comes first, until the import
-- ends. The order is forced: each step reads the sequence only for a row of the step before it.
with locked as materialized (
  select
    case when :highest - s.last_value > 1000000
      then pg_advisory_xact_lock(hashtextextended('reserve_movie_ids', 0)) is not null
    end as may_leap
  from movies_id_seq as s
),
leapt as materialized (
  select (
    select setval('movies_id_seq', :highest)
    from movies_id_seq as s
    where l.may_leap and :highest - s.last_value > 1000000
  ) as last_id
  from locked as l
)
select count(nextval('movies_id_seq')) as drawn
from leapt as l
cross join lateral generate_series(
  1,
  (
    select :highest - case when s.is_called then s.last_value else s.last_value - 1 end
    from movies_id_seq as s
    where l.last_id is null
  )
);

-- name: import_movies(movies)
-- set: statement_timeout = 0
-- \set movies '\'[{"title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"]}]\''
-- Rows of an export bring id, version and times of their own. Other rows get what `create table
-- movies` says.
insert into movies (id, title, year, runtime, genres, version, created_at, updated_at)
overriding system value
select
  coalesce(n.id, nextval('movies_id_seq')),
  n.title, n.year, n.runtime, n.genres,
  coalesce(n.version, 1), coalesce(n.created_at, now()), coalesce(n.updated_at, now())
from jsonb_to_recordset(:movies)
  as n (
    id bigint, title text, year integer, runtime integer, genres text[],
    version integer, created_at timestamptz, updated_at timestamptz
  );

-- name: analyze_movies()
-- set: statement_timeout = 0
-- The planner learns of the imported movies.
analyze movies;

-- name: export_movies(after_id, size)
-- set: transaction_read_only = on
-- set: statement_timeout = 0
-- \set after_id 0
-- \set size 1000
-- The next movies by id.
select m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
from movies as m
where m.id > :after_id::bigint
order by m.id
limit :size;
