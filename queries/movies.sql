-- Get, create, update and delete movies. Requests that arrive together share one statement, so each
-- statement takes and returns many rows. The service sends parameters as literals. To run a query in
-- psql, set its parameters first: the comment below its name shows how. See docs/dbas.md.
-- `transaction`, here and in idempotency.sql, is the number of the statement's own transaction: clients get it as
-- Catalogue-Position, and a replica that has replayed it shows them their write (docs/clients/contract.md).
-- The second argument of hashtextextended keeps advisory locks apart: 0 and 1 are those of imports, 2 of idempotency keys,
-- 3 of external ids, 4 of movies that are restored. The release before takes 0 for keys, too: between the two, the
-- primary key decides.
-- `client`: the id of the client of a movie's request, or null. A statement names the clients of the movies that it writes
-- in the setting catalogue.clients, before it does (`named`): the triggers of the feed record them with the changes.

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
    n.position, n.client, n.title, n.year, n.runtime, n.genres, n.external_id
  from jsonb_to_recordset(:movies) as n (
    position bigint, client bigint, title text, year integer, runtime integer, genres text[], external_id text
  )
),
named as materialized (
  select set_config('catalogue.clients', coalesce(jsonb_object_agg(n.id, n.client), '{}')::text, true)
  from new as n
),
created as (
  insert into movies (id, title, year, runtime, genres, external_id)
  overriding system value
  select n.id, n.title, n.year, n.runtime, n.genres, n.external_id
  from named
  cross join new as n
  returning id, title, year, runtime, genres, external_id, version, created_at, updated_at
)
select
  pg_current_xact_id()::text::bigint as transaction, n.position, c.*
from created as c
join new as n on n.id = c.id;

-- name: put_movies(movies, all_or_none)
-- set: gin_pending_list_limit = 64kB
-- \set all_or_none false
-- \set movies '\'[{"number": 0, "replace": true, "fields": {"title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"], "external_id": "imdb:tt3521164"}}]\''
-- Creates each movie, or, with `replace`, gives the movie that has its external id these fields, and keeps those that are
-- missing; each external id may occur once. Returns for each `number` the outcome:
--   created, changed, or equal: the movie has these fields, and its version stays;
--   taken: without `replace`, and the movie with this id has the external id;
--   failed: there are `versions`, and the movie with this external id is not there, has another `id`, or another version;
--   locked: another session has locked the movie's row, has just changed it, or creates a movie with this external id; the
--   service sends the movie again. Waiting would delay all requests that share the statement.
-- A movie that is to be created or changed and has nulls was not written, because a trigger of yours has prevented it.
-- With `all_or_none`, none is written if one is taken, failed or locked; these have nulls then, too.
-- Each external id that the service sets has a lock. psql and imports do not take it: for them, the unique index waits.
with new as materialized (
  select
    n.number, n.client, n.replace, n.fields, n.id as tagged_id, n.versions,
    f.title, f.year, f.runtime, f.genres, f.external_id, m.id, m.version,
    case
      when m.id is not null then (
        select (m.title, m.year, m.runtime, m.genres) is distinct from (p.title, p.year, p.runtime, p.genres)
        from jsonb_populate_record(m.*, n.fields) as p
      )
    end as differs
  from jsonb_to_recordset(:movies)
    as n (number bigint, client bigint, replace boolean, fields jsonb, id bigint, versions integer[])
  cross join jsonb_to_record(n.fields)
    as f (title text, year integer, runtime integer, genres text[], external_id text)
  left join movies as m on m.external_id = f.external_id
),
-- As they are now, which may be newer than in `new`.
free as materialized (
  select m.id, m.external_id, m.version
  from movies as m
  where m.id in (select n.id from new as n where n.replace and n.differs)
  for no key update skip locked
),
checked as materialized (
  select
    n.number, n.id, n.version,
    case
      when n.versions is not null and n.id is null then 'failed'
      when n.id is null and n.external_id is null then 'created'
      when n.id is null and pg_try_advisory_xact_lock(hashtextextended(n.external_id, 3)) then 'created'
      when n.id is null then 'locked'
      when not n.replace then 'taken'
      when not n.differs then 'equal'
      when n.id <> n.tagged_id then 'failed'
      when f.id is null then 'locked'
      when n.version <> all (n.versions) then 'failed'
      else 'changed'
    end as outcome
  from new as n
  left join free as f on f.id = n.id and f.external_id = n.external_id and f.version = n.version
),
going as materialized (
  select c.number, c.outcome, coalesce(c.id, nextval('movies_id_seq')) as id
  from checked as c
  where c.outcome in ('created', 'changed')
    and (not :all_or_none or not exists (select from checked as a where a.outcome in ('taken', 'failed', 'locked')))
  order by c.number -- so are the ids
),
named as materialized (
  select set_config('catalogue.clients', coalesce(jsonb_object_agg(g.id, n.client), '{}')::text, true)
  from going as g
  join new as n on n.number = g.number
),
created as (
  insert into movies (id, title, year, runtime, genres, external_id)
  overriding system value
  select g.id, n.title, n.year, n.runtime, n.genres, n.external_id
  from named
  cross join going as g
  join new as n on n.number = g.number
  where g.outcome = 'created'
  returning id, title, year, runtime, genres, external_id, version, created_at, updated_at
),
changed as (
  update movies as m
  set (title, year, runtime, genres) = (
    select f.title, f.year, f.runtime, f.genres
    from jsonb_populate_record(m.*, n.fields) as f
  )
  from named
  cross join going as g
  join new as n on n.number = g.number
  where m.id = g.id
    and g.outcome = 'changed'
  returning m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
),
done as (
  select c.* from created as c
  union all
  select c.* from changed as c
  union all
  select m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
  from checked as c
  join movies as m on m.id = c.id
  where c.outcome in ('equal', 'taken')
)
select
  pg_current_xact_id()::text::bigint as transaction, c.number,
  -- A trigger of yours may have undone the change.
  case when c.outcome = 'changed' and d.version = c.version then 'equal' else c.outcome end as outcome,
  d.*
from checked as c
left join going as g on g.number = c.number
left join done as d on d.id = coalesce(g.id, c.id);

-- name: restore_movies(restores, all_or_none)
-- set: gin_pending_list_limit = 64kB
-- \set all_or_none false
-- \set restores '\'[{"id": 1, "version": 1, "versions": [2]}, {"id": 2}]\''
-- Gives each movie the fields that it had in `version`, as a new version; without one, brings a deleted movie back as it
-- was. Each id may occur once. The function restore_movies does it; it gets its rows from `named`, so that the clients are
-- named before it writes. Returns for each id (`number`) the outcome:
--   changed, or equal, and nothing was written; restored: it was deleted;
--   there: it is not deleted, and there is no `version`;
--   missing, failed, taken or locked, as for update_movies; failed also if it `is_tagged` and the movie is deleted;
--   untagged: it `needs_tag`, and the movie is there;
--   unknown: the movie never had this version; cleared: a change since then is not kept; off: the feed is.
-- For nulls and `all_or_none` see put_movies.
with named as materialized (
  select
    set_config('catalogue.clients', coalesce(jsonb_object_agg(r.id, r.client), '{}')::text, true),
    :restores::jsonb as restores
  from jsonb_to_recordset(:restores) as r (id bigint, client bigint)
)
select
  pg_current_xact_id()::text::bigint as transaction, r.number, r.outcome, coalesce((r.movie).id, r.owner) as id,
  (r.movie).title, (r.movie).year, (r.movie).runtime, (r.movie).genres, (r.movie).external_id, (r.movie).version,
  (r.movie).created_at, (r.movie).updated_at
from named as n
cross join lateral restore_movies(n.restores, :all_or_none) as r;

-- name: update_movies(updates, all_or_none)
-- set: gin_pending_list_limit = 64kB
-- \set all_or_none false
-- \set updates '\'[{"id": 1, "fields": {"title": "Moana", "genres": ["animation", "adventure"]}, "versions": [1]}]\''
-- A field that is missing stays unchanged, and null removes an optional one. Each id may occur once. The trigger
-- zzz_movies_keep_version sets version and updated_at. Returns for each id that was sent (`number`) the outcome:
--   changed, or equal: the movie has these fields, and its version stays;
--   missing: there is no movie with this id;
--   failed: a condition does not hold: the version is one of `versions` and none of `other_than`, and the movie has not
--   changed since `unmodified_since` (to the second). Conditions are checked after the row is locked. The version
--   may be one more than one of `versions` if the movie has the fields: its client repeats a change;
--   taken: the movie with this id has the external id that is to be set;
--   locked: another session has locked the row, or sets the same external id; the service sends the change again.
--   Waiting would delay all requests that share the statement.
-- For nulls and `all_or_none` see put_movies.
with changes as materialized (
  select
    c.id, c.client, c.fields, c.fields ->> 'external_id' as external_id,
    c.versions, c.other_than, c.unmodified_since
  from jsonb_to_recordset(:updates) as c (
    id bigint, client bigint, fields jsonb, versions integer[], other_than integer[], unmodified_since timestamptz
  )
),
-- As it was, and with the fields. If another session has changed it since the snapshot, PostgreSQL computes both again.
free as materialized (
  select m.id, (m.*)::movies as was, jsonb_populate_record(m.*, c.fields) as movie
  from movies as m
  join changes as c on c.id = m.id
  for no key update of m skip locked
),
checked as materialized (
  select
    c.id, c.client, f.movie, o.id as owner,
    case
      when m.id is null then 'missing'
      when f.id is null then 'locked'
      when (f.was).version <> all (c.versions) and (f.movie *<> f.was or (f.was).version - 1 <> all (c.versions))
        then 'failed'
      when (f.was).version = any (c.other_than) then 'failed'
      when date_trunc('second', (f.was).updated_at) > c.unmodified_since then 'failed'
      when f.movie *= f.was then 'equal'
      when o.id is not null then 'taken'
      when c.external_id is distinct from (f.was).external_id
        and not pg_try_advisory_xact_lock(hashtextextended(c.external_id, 3)) then 'locked'
      else 'changed'
    end as outcome
  from changes as c
  left join movies as m on m.id = c.id
  left join free as f on f.id = c.id
  left join movies as o on o.external_id = c.external_id and o.id <> c.id
),
named as materialized (
  select set_config('catalogue.clients', coalesce(jsonb_object_agg(k.id, k.client), '{}')::text, true)
  from checked as k
  where k.outcome = 'changed'
),
updated as (
  update movies as m
  set (title, year, runtime, genres, external_id) = (
    (k.movie).title, (k.movie).year, (k.movie).runtime, (k.movie).genres, (k.movie).external_id
  )
  from named
  cross join checked as k
  where m.id = k.id
    and k.outcome = 'changed'
    and (not :all_or_none or not exists (select from checked as a where a.outcome not in ('changed', 'equal')))
  returning m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
),
done as (
  select u.* from updated as u
  union all
  select
    k.id, (k.movie).title, (k.movie).year, (k.movie).runtime, (k.movie).genres, (k.movie).external_id,
    (k.movie).version, (k.movie).created_at, (k.movie).updated_at
  from checked as k
  where k.outcome = 'equal'
)
select
  pg_current_xact_id()::text::bigint as transaction, k.id as number,
  case when k.outcome = 'changed' and d.version = (k.movie).version then 'equal' else k.outcome end as outcome,
  case when k.outcome = 'taken' then k.owner else d.id end as id,
  d.title, d.year, d.runtime, d.genres, d.external_id, d.version, d.created_at, d.updated_at
from checked as k
left join done as d on d.id = k.id;

-- name: delete_movies(deletions, all_or_none)
-- set: gin_pending_list_limit = 64kB
-- \set all_or_none false
-- \set deletions '\'[{"id": 1, "versions": [1, 2]}, {"id": 2}]\''
-- Returns the deleted movies: the outcome `deleted`, or missing, failed or locked, as for update_movies.
with deletions as materialized (
  select d.id, d.client, d.versions, d.other_than, d.unmodified_since
  from jsonb_to_recordset(:deletions) as d (
    id bigint, client bigint, versions integer[], other_than integer[], unmodified_since timestamptz
  )
),
free as materialized (
  select m.id, m.version, m.updated_at
  from movies as m
  where m.id in (select d.id from deletions as d)
  for update skip locked
),
checked as materialized (
  select
    d.id, d.client,
    case
      when m.id is null then 'missing'
      when f.id is null then 'locked'
      when f.version <> all (d.versions) then 'failed'
      when f.version = any (d.other_than) then 'failed'
      when date_trunc('second', f.updated_at) > d.unmodified_since then 'failed'
      else 'deleted'
    end as outcome
  from deletions as d
  left join movies as m on m.id = d.id
  left join free as f on f.id = d.id
),
named as materialized (
  select set_config('catalogue.clients', coalesce(jsonb_object_agg(k.id, k.client), '{}')::text, true)
  from checked as k
  where k.outcome = 'deleted'
),
deleted as (
  delete from movies as m
  using named
  cross join checked as k
  where m.id = k.id
    and k.outcome = 'deleted'
    and (not :all_or_none or not exists (select from checked as a where a.outcome <> 'deleted'))
  returning m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
)
select
  pg_current_xact_id()::text::bigint as transaction, k.id as number, k.outcome, x.*
from checked as k
left join deleted as x on x.id = k.id;
