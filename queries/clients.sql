-- The clients that use the API with a token, for requests and for `python -m service clients`. The service
-- never sends a token to the database, only the SHA-256 of it.

-- name: get_clients(ids)
-- set: transaction_read_only = on
-- \set ids '\'{1,2}\''
-- Returns the clients with these ids; an id that does not exist returns no row. Times are in seconds
-- since 1970; those of expires_at and previous_expires_at may be infinite.
select
  c.id, c.token_hash, c.previous_token_hash,
  extract(epoch from c.previous_expires_at)::double precision as previous_expires_at,
  c.scopes,
  extract(epoch from coalesce(c.expires_at, 'infinity'))::double precision as expires_at,
  coalesce(c.revoked_at <= now(), false) as is_revoked,
  c.last_used_on is not distinct from (now() at time zone 'UTC')::date as was_used_today
from clients as c
where c.id = any (:ids);

-- name: mark_clients_used(ids)
-- \set ids '\'{1,2}\''
-- Stores today (in UTC) as last_used_on; returns the ids of the clients that it changed. It skips locked
-- clients: another process is storing the same day, or the next lookup will store it.
with used as materialized (
  select c.id
  from clients as c
  where c.id = any (:ids)
    and c.last_used_on is distinct from (now() at time zone 'UTC')::date
  for no key update skip locked
)
update clients as c
set last_used_on = (now() at time zone 'UTC')::date
from used as u
where c.id = u.id
returning c.id;

-- name: list_clients()
-- set: transaction_read_only = on
-- Returns all clients, sorted by name, without the hashes of their tokens. Times are texts in UTC, to the
-- minute. Null means: never expires, not revoked, or never used. former_token_until: the token before a
-- rotation works until then; null if it does not work any more.
select
  c.id, c.name, c.scopes,
  left(c.expires_at::text, 16) as expires_at,
  left(c.revoked_at::text, 16) as revoked_at,
  case when c.previous_expires_at > now() then left(c.previous_expires_at::text, 16) end
    as former_token_until,
  c.last_used_on::text as last_used_on,
  (c.created_at at time zone 'UTC')::date::text as created_on
from clients as c
order by c.name;

-- name: reserve_client_ids(number)
-- \set number 1
-- Takes ids for new clients. The token contains the id, so the id must be known before the insert.
select nextval('clients_id_seq') as id
from generate_series(1, :number);

-- name: add_clients(clients)
-- set: lock_timeout = 10s
-- \set clients '\'[{"id": 1, "name": "reports", "token_hash": "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f", "scopes": ["read"], "expires_at": null}]\''
-- Returns no row for a client whose name is taken.
insert into clients (id, name, token_hash, scopes, expires_at)
overriding system value
select n.id, n.name, n.token_hash, n.scopes, n.expires_at
from jsonb_to_recordset(:clients)
  as n (id bigint, name text, token_hash text, scopes text[], expires_at timestamptz)
on conflict (name) do nothing
returning id;

-- name: lock_client(client_name)
-- set: lock_timeout = 10s
-- \set client_name '\'reports\''
-- Locks the client until the transaction ends, and returns it. refused_since: when the client expired or was
-- revoked; null if its token is accepted. former_token_until: the token before a rotation works until then;
-- null if it does not work any more. Both times are texts, to the minute.
select
  c.id,
  case when least(c.revoked_at, c.expires_at) <= now()
    then left(least(c.revoked_at, c.expires_at)::text, 16)
  end as refused_since,
  case when c.previous_expires_at > now() then left(c.previous_expires_at::text, 16) end
    as former_token_until
from clients as c
where c.name = :client_name
for update;

-- name: rotate_client(id, token_hash, former_token_until)
-- \set id 1
-- \set token_hash '\'0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f\''
-- \set former_token_until '\'2027-01-31 UTC\''
-- Gives the client a new token. The current token becomes the former token and works until
-- former_token_until; if that is null, it stops at once. Any earlier former token stops, too.
update clients as c
set
  token_hash = :token_hash,
  previous_token_hash = case when :former_token_until::timestamptz is not null then c.token_hash end,
  previous_expires_at = :former_token_until
where c.id = :id;

-- name: revoke_client(client_name)
-- set: lock_timeout = 10s
-- \set client_name '\'reports\''
-- Refuses all tokens of the client from now on. If the client was revoked before, revoked_at stays the same.
update clients as c
set revoked_at = least(c.revoked_at, now())
where c.name = :client_name
returning c.id;
