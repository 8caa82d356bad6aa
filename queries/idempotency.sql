-- POST /v1/movies with an Idempotency-Key: the key creates one movie; the same key again returns the
-- first response.

-- name: create_movies_once(requests)
-- set: gin_pending_list_limit = 64kB
-- \set requests '\'[{"position": 0, "key": "a", "fingerprint": "f", "title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"]}]\''
-- Each request returns its position, the fingerprint that its key was first used with, and the movie
-- as it was then: with the fields of the request, as a repeat has the same (the service compares the
-- fingerprints), unless a copy is stored. A copy is stored if a trigger changed the movie, or if there is
-- an older copy. A request without a row: another session uses
-- its key now, or used it a moment ago, and this statement cannot see the response yet. Send the request again.
-- A movie is created only for a key that this statement inserts; the primary key lets only one session
-- insert it. The advisory locks only avoid waiting for another session. Keys are inserted in order, to
-- prevent deadlocks.
with requests as materialized (
  select
    r.position, r.key, r.fingerprint, r.title, r.year, r.runtime, r.genres
  from jsonb_to_recordset(:requests) as r (
    position bigint, key text, fingerprint text,
    title text, year integer, runtime integer, genres text[]
  )
),
known as materialized (
  select
    k.key, k.fingerprint,
    coalesce(a.id, k.movie_id) as id, a.title, a.year, a.runtime, a.genres,
    coalesce(a.version, 1) as version,
    coalesce(a.created_at, k.created_at) as created_at,
    coalesce(a.updated_at, k.created_at) as updated_at
  from idempotency_keys as k
  left join idempotency_answers as a on a.key = k.key
  where k.key in (select r.key from requests as r)
    and k.expires_at > now()
    and coalesce(a.id, k.movie_id) is not null
  -- A commit with a row lock waits for the synchronous standby, so a repeated request is not answered
  -- before the movie is replicated.
  for key share of k
),
-- If several requests have the same new key, only the first one.
unknown as materialized (
  select distinct on (r.key)
    r.position, r.key, r.fingerprint, r.title, r.year, r.runtime, r.genres
  from requests as r
  where not exists (select from known as k where k.key = r.key)
  order by r.key, r.position
),
new as materialized (
  select
    nextval('movies_id_seq') as id,
    u.position, u.key, u.fingerprint, u.title, u.year, u.runtime, u.genres
  from unknown as u
  where pg_try_advisory_xact_lock(hashtextextended(u.key, 0))
),
taken as (
  insert into idempotency_keys as k (key, fingerprint, movie_id, created_at)
  select n.key, n.fingerprint, n.id, now()
  from new as n
  order by n.key
  on conflict (key) do update set
    fingerprint = excluded.fingerprint, expires_at = excluded.expires_at,
    movie_id = excluded.movie_id, created_at = excluded.created_at
    where k.expires_at <= now()
  returning k.key
),
created as (
  insert into movies (id, title, year, runtime, genres)
  overriding system value
  select n.id, n.title, n.year, n.runtime, n.genres
  from taken as t
  join new as n on n.key = t.key
  returning id, title, year, runtime, genres, version, created_at, updated_at
),
kept as (
  insert into idempotency_answers
    (key, id, title, year, runtime, genres, version, created_at, updated_at)
  select
    n.key, c.id, c.title, c.year, c.runtime, c.genres, c.version, c.created_at, c.updated_at
  from taken as t
  join new as n on n.key = t.key
  -- If a trigger did not let the movie be created, its null id fails the statement: the key stays unused.
  left join created as c on c.id = n.id
  where (c.title, c.year, c.runtime, c.genres, c.version, c.created_at, c.updated_at)
      is distinct from (n.title, n.year, n.runtime, n.genres, 1, now(), now())
    or exists (select from idempotency_answers as a where a.key = n.key)
  on conflict (key) do update set
    id = excluded.id, title = excluded.title, year = excluded.year, runtime = excluded.runtime,
    genres = excluded.genres, version = excluded.version, created_at = excluded.created_at,
    updated_at = excluded.updated_at
),
answers as (
  select
    null::bigint as position, k.key, k.fingerprint,
    k.id, k.title, k.year, k.runtime, k.genres, k.version, k.created_at, k.updated_at
  from known as k
  union all
  select
    n.position, n.key, n.fingerprint,
    c.id, c.title, c.year, c.runtime, c.genres, c.version, c.created_at, c.updated_at
  from created as c
  join new as n on n.id = c.id
)
select
  r.position, a.fingerprint, a.position is distinct from r.position as replayed,
  a.id, coalesce(a.title, r.title) as title, coalesce(a.year, r.year) as year,
  coalesce(a.runtime, r.runtime) as runtime, coalesce(a.genres, r.genres) as genres,
  a.version, a.created_at, a.updated_at
from requests as r
join answers as a on a.key = r.key;

-- name: clear_idempotency_keys(at_most)
-- \set at_most 1000
-- Deletes up to at_most expired keys with their responses, and returns the number. Locked keys are
-- skipped.
with expired as materialized (
  select k.key
  from idempotency_keys as k
  where k.expires_at <= now()
  order by k.expires_at
  limit coalesce(:at_most, 0)
  for update skip locked
),
gone as (
  delete from idempotency_keys as k
  using expired as e
  where k.key = e.key
  returning k.key
)
select count(*)::integer as cleared
from gone as g;

-- name: estimate_idempotency_keys()
-- set: transaction_read_only = on
-- Returns PostgreSQL's estimate of the stored keys, without reading them: the larger one of what vacuum
-- or analyze found, and of the statistics, which a crash resets.
select greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0) as keys
from pg_class as c
where c.oid = 'idempotency_keys'::regclass;
