-- Get, create, update and delete movies. Requests that arrive together share one statement, so each
-- statement takes and returns many rows. The service sends parameters as literals. To run a query in
-- psql, set its parameters first: the comment below its name shows how. See docs/dbas.md.
-- `transaction`, here and in idempotency.sql, is the number of the statement's own transaction: clients get it as
-- Catalogue-Position, and a replica that has replayed it shows them their write (docs/clients/contract.md).

-- name: get_movies(ids)
-- set: transaction_read_only = on
-- \set ids '\'{1,2}\''
-- Returns the movies with these ids; an id that does not exist returns no row.
select m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
from movies as m
where m.id = any (:ids);

-- name: find_movies(external_ids)
-- set: transaction_read_only = on
-- \set external_ids '\'["imdb:tt3521164", "netflix:s123"]\''
-- Returns the movies with these external ids; one that no movie has returns no row.
select m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
from movies as m
where m.external_id = any (array(select jsonb_array_elements_text(:external_ids)));

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
    n.position, n.title, n.year, n.runtime, n.genres, n.external_id
  from jsonb_to_recordset(:movies)
    as n (position bigint, title text, year integer, runtime integer, genres text[], external_id text)
),
created as (
  insert into movies (id, title, year, runtime, genres, external_id)
  overriding system value
  select n.id, n.title, n.year, n.runtime, n.genres, n.external_id
  from new as n
  order by n.external_id -- two batches with the same ones wait for each other in this order
  returning id, title, year, runtime, genres, external_id, version, created_at, updated_at
)
select
  pg_current_xact_id()::text::bigint as transaction, n.position,
  c.id, c.title, c.year, c.runtime, c.genres, c.external_id, c.version, c.created_at, c.updated_at
from created as c
join new as n on n.id = c.id;

-- name: put_movies(movies, all_or_none)
-- set: gin_pending_list_limit = 64kB
-- \set all_or_none false
-- \set movies '\'[{"position": 0, "replace": true, "title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"], "external_id": "imdb:tt3521164"}]\''
-- Creates each movie, or, with `replace`, gives the movie that has its external id these fields; each external id may
-- occur once. Returns the outcome for each `position`: created, changed, equal (nothing was written), or taken (without
-- `replace`); and the movie. The outcome is null if nothing was done: another session holds the lock of the movie's row
-- or creates a movie with this external id, and the service sends the movie again. Waiting would delay all requests that
-- share the statement. With `all_or_none`, nothing is done for any movie if it cannot be done for all.
-- `position` is a number that the service computes from the external id, and also names the lock of that id. psql and
-- imports do not take this lock: if they create a movie with the same external id, the unique index refuses the statement.
with new as materialized (
  select n.position, n.replace, n.title, n.year, n.runtime, n.genres, n.external_id
  from jsonb_to_recordset(:movies) as n (
    position bigint, replace boolean,
    title text, year integer, runtime integer, genres text[], external_id text
  )
),
known as materialized (
  select
    m.id, m.external_id,
    n.replace and (m.title, m.year, m.runtime, m.genres) is distinct from (n.title, n.year, n.runtime, n.genres) as differs
  from new as n
  join movies as m on m.external_id = n.external_id
),
free as materialized (
  select m.id, m.external_id
  from movies as m
  where m.id in (select k.id from known as k where k.differs)
  for update skip locked
),
checked as materialized (
  select
    n.position, k.id,
    case
      when k.id is null then pg_try_advisory_xact_lock(n.position)
      when k.differs then f.id is not null
      else true
    end as is_free
  from new as n
  left join known as k on k.external_id = n.external_id
  left join free as f on f.id = k.id and f.external_id = n.external_id
),
going as materialized (
  select c.position, c.id
  from checked as c
  where c.is_free
    and (not :all_or_none or (select bool_and(a.is_free) from checked as a))
),
created as (
  insert into movies (title, year, runtime, genres, external_id)
  select n.title, n.year, n.runtime, n.genres, n.external_id
  from going as g
  join new as n on n.position = g.position
  where g.id is null
  order by n.external_id
  returning id, title, year, runtime, genres, external_id, version, created_at, updated_at
),
changed as (
  update movies as m
  set (title, year, runtime, genres) = (n.title, n.year, n.runtime, n.genres)
  from going as g
  join new as n on n.position = g.position
  join known as k on k.id = g.id
  where m.id = g.id
    and k.differs
  returning m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
),
done as (
  select
    'created' as outcome,
    c.id, c.title, c.year, c.runtime, c.genres, c.external_id, c.version, c.created_at, c.updated_at
  from created as c
  union all
  select
    'changed',
    c.id, c.title, c.year, c.runtime, c.genres, c.external_id, c.version, c.created_at, c.updated_at
  from changed as c
  union all
  select
    case when n.replace then 'equal' else 'taken' end,
    m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
  from known as k
  join new as n on n.external_id = k.external_id
  join movies as m on m.id = k.id
  where not k.differs
)
select
  pg_current_xact_id()::text::bigint as transaction, n.position, d.outcome,
  d.id, d.title, d.year, d.runtime, d.genres, d.external_id, d.version, d.created_at, d.updated_at
from new as n
left join done as d on d.external_id = n.external_id;

-- name: restore_movie(id)
-- set: gin_pending_list_limit = 64kB
-- \set id 1
-- Brings a deleted movie back as it was, by the function restore_movies. If it does not, there are nulls, and the reasons:
-- is_on: of the feed, which keeps deleted movies. is_there: there is a movie with this id. owner: the movie that has its
-- external id by now. is_kept: the feed has the movie, so another session may be restoring it. was_used: there was a movie
-- with this id, as far as that is known: once the feed has cleared changes, each id that was given out counts as used.
with restored as materialized (
  select r.id, r.title, r.year, r.runtime, r.genres, r.external_id, r.version, r.created_at, r.updated_at
  from restore_movies(array[:id::bigint]) as r
),
last as materialized (
  select c.movie
  from movie_changes as c
  where c.movie_id = :id::bigint
    and c.kind = 'deleted'
  order by c.id desc
  limit 1
)
select
  pg_current_xact_id()::text::bigint as transaction, f.is_on,
  exists (select from movies as m where m.id = :id::bigint) as is_there,
  (
    select m.id
    from last as l
    join movies as m on m.external_id = l.movie ->> 'external_id'
  ) as owner,
  exists (select from last as l where l.movie is not null) as is_kept,
  exists (select from last as l)
  or (f.cleared_to <> '0' and :id::bigint <= coalesce(pg_sequence_last_value('movies_id_seq'), 0)) as was_used,
  r.id, r.title, r.year, r.runtime, r.genres, r.external_id, r.version, r.created_at, r.updated_at
from movie_feed as f
left join restored as r on true;

-- name: update_movies(updates, all_or_none)
-- set: gin_pending_list_limit = 64kB
-- \set all_or_none false
-- \set updates '\'[{"id": 1, "fields": {"title": "Moana", "genres": ["animation", "adventure"]}, "versions": [1]}]\''
-- A field that is missing stays unchanged, and null removes an optional one. Each id may occur once. An id
-- that does not exist returns no row. `locked`: another session holds the row's lock, so the movie was not
-- changed, and the service sends the change again. Waiting for the lock would delay all requests that share
-- the statement. The trigger zzz_movies_keep_version sets version and updated_at.
-- Conditions are checked after the row is locked: the version is one of `versions` and none of
-- `other_than`, and the movie has not changed since `unmodified_since` (to the second). If a condition does
-- not hold, the movie is not changed and `done` is false. It is null if they hold, but the movie was not changed:
-- a trigger of yours has prevented it, which the service reports as a fault.
-- With `all_or_none`, no movie is changed unless all of them exist, are free, and meet their conditions.
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
  set (title, year, runtime, genres, external_id) = (
    select n.title, n.year, n.runtime, n.genres, n.external_id
    from jsonb_populate_record(m, c.fields) as n
  )
  from changes as c
  join checked as k on k.id = c.id
  where m.id = k.id
    and k.holds
    and (
      not :all_or_none
      or not exists (select from changes as a left join checked as h on h.id = a.id where h.holds is not true)
    )
  returning m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
)
select
  pg_current_xact_id()::text::bigint as transaction, k.id is null as locked,
  case when u.id is not null then true when not k.holds then false end as done,
  m.id, u.title, u.year, u.runtime, u.genres, u.external_id, u.version, u.created_at, u.updated_at
from changes as c
join movies as m on m.id = c.id
left join checked as k on k.id = c.id
left join updated as u on u.id = c.id;

-- name: delete_movies(deletions, all_or_none)
-- set: gin_pending_list_limit = 64kB
-- \set all_or_none false
-- \set deletions '\'[{"id": 1, "versions": [1, 2]}, {"id": 2}]\''
-- Returns the deleted movies. For missing ids, conditions, `done`, `locked` and `all_or_none` see update_movies.
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
    and (
      not :all_or_none
      or not exists (select from deletions as a left join checked as h on h.id = a.id where h.holds is not true)
    )
  returning m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
)
select
  pg_current_xact_id()::text::bigint as transaction, k.id is null as locked,
  case when x.id is not null then true when not k.holds then false end as done,
  m.id, x.title, x.year, x.runtime, x.genres, x.external_id, x.version, x.created_at, x.updated_at
from deletions as d
join movies as m on m.id = d.id
left join checked as k on k.id = d.id
left join deleted as x on x.id = d.id;
