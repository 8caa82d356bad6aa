-- The clients that use the API with a token, for requests and for `python -m service clients`. Tokens
-- themselves are never sent to the database, only their SHA-256.

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
-- Records today, in UTC, as the last day of use of these clients; returns those that had another one.
-- Locked clients are skipped: another process records the same, or the next lookup tries again.
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
