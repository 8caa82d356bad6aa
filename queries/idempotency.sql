-- POST /v1/movies with an Idempotency-Key: the key creates one movie; the same key again returns the
-- first response. The service sends create_movies_once, and get_idempotent_responses for the requests
-- that it returns no row for.

-- name: create_movies_once(requests)
-- set: gin_pending_list_limit = 64kB
-- \set requests '\'[{"position": 0, "key": "a", "fingerprint": "f", "title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"]}]\''
-- Creates the movies of unused keys, and stores each key with its movie. Each key may occur once. A
-- request whose key is used returns no row, nor does one whose key another session is using now: its
-- lock is not waited for, as that would delay all requests that share the statement.
-- If another session has committed the key since this statement's snapshot, the primary key refuses
-- the statement, and no movie is created.
with new as materialized (
  select
    nextval('movies_id_seq') as id,
    r.position, r.key, r.fingerprint, r.title, r.year, r.runtime, r.genres
  from jsonb_to_recordset(:requests) as r (
    position bigint, key text, fingerprint text,
    title text, year integer, runtime integer, genres text[]
  )
  where not exists (
      select from idempotency_keys as k where k.key = r.key and k.expires_at > now()
    )
    and pg_try_advisory_xact_lock(hashtextextended(r.key, 0))
),
expired as (
  delete from idempotency_keys as k
  using new as n
  where k.key = n.key and k.expires_at <= now()
  returning k.key
),
created as (
  insert into movies (id, title, year, runtime, genres)
  overriding system value
  select n.id, n.title, n.year, n.runtime, n.genres
  from new as n
  returning id, title, year, runtime, genres, version, created_at, updated_at
),
stored as (
  insert into idempotency_keys (key, fingerprint, response)
  select n.key, n.fingerprint, to_jsonb(c)
  from created as c
  join new as n on n.id = c.id
  -- The join makes PostgreSQL delete an expired key before it inserts the key again.
  left join expired as e on e.key = n.key
)
-- The id is null if a trigger did not let the movie be created. Then no key is stored.
select
  n.position, n.fingerprint,
  c.id, c.title, c.year, c.runtime, c.genres, c.version, c.created_at, c.updated_at
from new as n
left join created as c on c.id = n.id;

-- name: get_idempotent_responses(requests)
-- \set requests '\'[{"position": 0, "key": "a", "title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"]}]\''
-- Returns the movie that each request's key created, as it was then, and the fingerprint of the fields
-- that were sent then. An unused key returns no row.
select
  q.position, k.fingerprint,
  m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
from jsonb_to_recordset(:requests) as q (
  position bigint, key text, title text, year integer, runtime integer, genres text[]
)
join idempotency_keys as k on k.key = q.key
left join idempotency_answers as a on a.key = k.key
cross join jsonb_to_record(
  case
    -- The release before stores a copy of the movie, or only its id and time: a repeat with the same
    -- fingerprint has the same fields.
    when a.key is not null then to_jsonb(a)
    when k.movie_id is not null then jsonb_build_object(
      'id', k.movie_id, 'title', q.title, 'year', q.year, 'runtime', q.runtime, 'genres', q.genres,
      'version', 1, 'created_at', k.created_at, 'updated_at', k.created_at
    )
    else k.response
  end
) as m (
  id bigint, title text, year integer, runtime integer, genres text[],
  version integer, created_at timestamptz, updated_at timestamptz
)
where k.expires_at > now()
  and m.id is not null
-- A commit with a row lock waits for the synchronous standby, so a repeated request is not answered
-- before the movie is replicated.
for key share of k;

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
