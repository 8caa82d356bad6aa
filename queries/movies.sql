-- Get, create, update and delete movies. Requests that arrive together share one statement, so each
-- statement takes and returns many rows. The service sends parameters as literals. To run a query in
-- psql, set its parameters first: the comment below its name shows how. See docs/dbas.md.
-- `transaction`, here and in idempotency.sql, is the number of the statement's own transaction: clients get it as
-- Catalogue-Position, and a replica that has replayed it shows them their write (docs/clients/contract.md).

-- name: get_movies(ids)
-- set: transaction_read_only = on
-- \set ids '\'{1,2}\''
-- Returns the movies with these ids; an id that does not exist returns no row.
select m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
from movies as m
where m.id = any (:ids);

-- name: create_movies(movies)
-- PostgreSQL collects new words in a list. When the list is full, the current statement merges the list
-- into the index movies_search. A merge takes 0.15 s at the default size of 4 MB, and 7 ms at 64 kB; all
-- merges together take the same time (https://www.postgresql.org/docs/current/gin.html#GIN-FAST-UPDATE).
-- set: gin_pending_list_limit = 64kB
-- \set movies '\'[{"position": 0, "title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"]}]\''
-- Returns each movie with the position of its input row. `returning` cannot return the position, so each
-- row gets its id before the insert, and the id joins movie and position.
with new as materialized (
  select
    nextval('movies_id_seq') as id,
    n.position, n.title, n.year, n.runtime, n.genres
  from jsonb_to_recordset(:movies)
    as n (position bigint, title text, year integer, runtime integer, genres text[])
),
created as (
  insert into movies (id, title, year, runtime, genres)
  overriding system value
  select n.id, n.title, n.year, n.runtime, n.genres
  from new as n
  returning id, title, year, runtime, genres, version, created_at, updated_at
)
select
  pg_current_xact_id()::text::bigint as transaction, n.position,
  c.id, c.title, c.year, c.runtime, c.genres, c.version, c.created_at, c.updated_at
from created as c
join new as n on n.id = c.id;

-- name: update_movies(updates)
-- set: gin_pending_list_limit = 64kB
-- \set updates '\'[{"id": 1, "fields": {"title": "Moana", "genres": ["animation", "adventure"]}, "versions": [1]}]\''
-- A field that is missing stays unchanged, and null removes an optional one. Each id may occur once. An id
-- that does not exist returns no row. `locked`: another session holds the row's lock, so the movie was not
-- changed, and the service sends the change again. Waiting for the lock would delay all requests that share
-- the statement. The trigger zzz_movies_keep_version sets version and updated_at.
-- Conditions are checked after the row is locked: the version is one of `versions` and none of
-- `other_than`, and the movie has not changed since `unmodified_since` (to the second). If a condition does
-- not hold, the movie is not changed and `done` is false. It is null if they hold, but the movie was not changed:
-- a trigger of yours has prevented it, which the service reports as a fault.
with changes as materialized (
  select c.id, c.fields, c.versions, c.other_than, c.unmodified_since
  from jsonb_to_recordset(:updates)
    as c (
      id bigint, fields jsonb, versions integer[], other_than integer[], unmodified_since timestamptz
    )
),
free as materialized (
  select m.id, m.version, m.updated_at
  from movies as m
  where m.id in (select c.id from changes as c)
  for update skip locked
),
checked as materialized (
  select
    f.id,
    (c.versions is null or f.version = any (c.versions))
    and (c.other_than is null or f.version <> all (c.other_than))
    and (c.unmodified_since is null or date_trunc('second', f.updated_at) <= c.unmodified_since) as holds
  from changes as c
  join free as f on f.id = c.id
),
updated as (
  update movies as m
  set (title, year, runtime, genres) = (
    select n.title, n.year, n.runtime, n.genres
    from jsonb_populate_record(m, c.fields) as n
  )
  from changes as c
  join checked as k on k.id = c.id
  where m.id = k.id
    and k.holds
  returning m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
)
select
  pg_current_xact_id()::text::bigint as transaction, k.id is null as locked,
  case when u.id is not null then true when not k.holds then false end as done,
  m.id, u.title, u.year, u.runtime, u.genres, u.version, u.created_at, u.updated_at
from changes as c
join movies as m on m.id = c.id
left join checked as k on k.id = c.id
left join updated as u on u.id = c.id;

-- name: delete_movies(deletions)
-- set: gin_pending_list_limit = 64kB
-- \set deletions '\'[{"id": 1, "versions": [1, 2]}, {"id": 2}]\''
-- Returns the deleted movies. For missing ids, conditions, `done` and `locked` see update_movies.
with deletions as materialized (
  select d.id, d.versions, d.other_than, d.unmodified_since
  from jsonb_to_recordset(:deletions)
    as d (id bigint, versions integer[], other_than integer[], unmodified_since timestamptz)
),
free as materialized (
  select m.id, m.version, m.updated_at
  from movies as m
  where m.id in (select d.id from deletions as d)
  for update skip locked
),
checked as materialized (
  select
    f.id,
    (d.versions is null or f.version = any (d.versions))
    and (d.other_than is null or f.version <> all (d.other_than))
    and (d.unmodified_since is null or date_trunc('second', f.updated_at) <= d.unmodified_since) as holds
  from deletions as d
  join free as f on f.id = d.id
),
deleted as (
  delete from movies as m
  using checked as k
  where m.id = k.id
    and k.holds
  returning m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
)
select
  pg_current_xact_id()::text::bigint as transaction, k.id is null as locked,
  case when x.id is not null then true when not k.holds then false end as done,
  m.id, x.title, x.year, x.runtime, x.genres, x.version, x.created_at, x.updated_at
from deletions as d
join movies as m on m.id = d.id
left join checked as k on k.id = d.id
left join deleted as x on x.id = d.id;
