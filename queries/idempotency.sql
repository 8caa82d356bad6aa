-- POST /v1/movies and /v1/movies/batch with an Idempotency-Key: a key creates its movies once, and a repeated key gets the
-- first response. The service sends create_movies_once first. For the requests without a row in its result, the service
-- then sends get_idempotent_responses.

-- name: create_movies_once(requests)
-- set: gin_pending_list_limit = 64kB
-- \set requests '\'[{"request": 0, "key": "a", "fingerprint": "f", "is_batch": false, "movies": [{"position": 0, "title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"]}]}]\''
-- For each unused key, creates all of its movies if none of their external ids is taken, and stores the key with them. A
-- key may occur only once in `requests`. A request returns no row if its key was used before, or if another session holds
-- the lock of the key now. Waiting for that lock would delay all requests that share the statement.
-- The outcome of each movie is `created`; or `taken`: the movie with this id has the external id; or `locked`: another
-- session sets this external id. Then no movie of the request is created, and its key is not stored.
-- If another session commits a key after this statement has taken its snapshot, the primary key refuses
-- the whole statement, and no movie is created. So does the unique index if two requests of the statement set the same
-- external id: a session gets its own locks twice. The service then sends each request alone.
with unused as materialized (
  select r.request, r.client, r.key, r.fingerprint, r.is_batch, r.movies
  from jsonb_to_recordset(:requests) as r (
    request bigint, client bigint, key text, fingerprint text, is_batch boolean, movies jsonb
  )
  where not exists (
      select from idempotency_keys as k where k.key = r.key and k.expires_at > now()
    )
    and pg_try_advisory_xact_lock(hashtextextended(r.key, 2))
),
expired as (
  delete from idempotency_keys as k
  using unused as u
  where k.key = u.key and k.expires_at <= now()
  returning k.key
),
checked as materialized (
  select
    u.request, u.client, n.position, u.key, u.fingerprint, u.is_batch, o.id as owner,
    -- Not to wait: see put_movies.
    n.external_id is null or pg_try_advisory_xact_lock(hashtextextended(n.external_id, 3)) as is_free,
    n.title, n.year, n.runtime, n.genres, n.external_id
  from unused as u
  cross join jsonb_to_recordset(u.movies)
    as n (position integer, title text, year integer, runtime integer, genres text[], external_id text)
  left join movies as o on o.external_id = n.external_id
),
new as materialized (
  select
    nextval('movies_id_seq') as id,
    c.request, c.client, c.position, c.key, c.fingerprint, c.is_batch,
    c.title, c.year, c.runtime, c.genres, c.external_id
  from checked as c
  where c.request not in (select r.request from checked as r where r.owner is not null or not r.is_free)
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
  order by n.request, n.position
  returning id, title, year, runtime, genres, external_id, version, created_at, updated_at
),
stored as (
  insert into idempotency_keys (key, fingerprint, response)
  select
    n.key, n.fingerprint,
    case when n.is_batch then jsonb_agg(to_jsonb(c) order by n.position) else jsonb_agg(to_jsonb(c)) -> 0 end
  from new as n
  left join created as c on c.id = n.id
  -- The join makes PostgreSQL delete an expired key before it inserts the key again.
  left join expired as e on e.key = n.key
  group by n.key, n.fingerprint, n.is_batch
  -- If a trigger prevents the insert of a movie, its id is null and the key is not stored; other movies of the batch are.
  having bool_and(c.id is not null)
)
select
  pg_current_xact_id()::text::bigint as transaction, k.request, k.position,
  case when k.owner is not null then 'taken' when k.is_free then 'created' else 'locked' end as outcome,
  coalesce(k.owner, c.id) as id,
  c.title, c.year, c.runtime, c.genres, c.external_id, c.version, c.created_at, c.updated_at
from checked as k
left join new as n on n.request = k.request and n.position = k.position
left join created as c on c.id = n.id;

-- name: get_idempotent_responses(requests)
-- \set requests '\'[{"request": 0, "key": "a"}]\''
-- Returns, for each request, the movies that its key created, each with its position, as they were at their creation, and
-- the fingerprint of what was sent with the key. A request with an unused key returns no row. If a newer release has
-- stored a response of another form, there is one movie of nulls: the service says so.
select
  pg_current_xact_id()::text::bigint as transaction, q.request, (coalesce(r.place, 1) - 1)::integer as position,
  k.fingerprint,
  m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
from jsonb_to_recordset(:requests) as q (request bigint, key text)
join idempotency_keys as k on k.key = q.key
left join jsonb_array_elements(
  case jsonb_typeof(k.response) when 'array' then k.response when 'object' then jsonb_build_array(k.response) end
) with ordinality as r (movie, place) on true
cross join jsonb_to_record(case jsonb_typeof(r.movie) when 'object' then r.movie end) as m (
  id bigint, title text, year integer, runtime integer, genres text[], external_id text,
  version integer, created_at timestamptz, updated_at timestamptz
)
where k.expires_at > now()
-- The row lock makes the commit wait for the synchronous standby: a repeated request must not get its
-- response before the movies are replicated.
for key share of k;

-- name: clear_idempotency_keys(at_most)
-- \set at_most 1000
-- Deletes up to at_most expired keys with their responses, and returns how many it deleted; null: none. It skips
-- locked keys.
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
-- Returns PostgreSQL's estimate of the number of stored keys, without reading them. PostgreSQL has two
-- estimates: one from the last vacuum or analyze, and one in its statistics, which a crash resets to 0.
-- The larger one is returned.
select greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0) as keys
from pg_class as c
where c.oid = 'idempotency_keys'::regclass;
