-- Only for `python -m service queries test`: these statements make time pass, in a transaction that is rolled back.

-- name: show_transaction()
-- Returns what the rows of this transaction have in common.
select pg_current_xact_id()::text as transaction, now() as now;

-- name: expire_keys(keys, seconds)
-- \set keys '\'{a,b}\'' \set seconds 0
-- Lets the keys expire in so many seconds; returns those that there are.
update idempotency_keys as k
set expires_at = now() + make_interval(secs => :seconds)
where k.key = any (:keys)
returning k.key;

-- name: place_changes(place, days_old, cleared_to)
-- \set place '\'1\'' \set days_old 0 \set cleared_to '\'0\''
-- Puts the changes of this transaction into another one, so that get_changes shows them: no real change is of transaction
-- 1 or 2, and null is the last one below the horizon. Makes them so many days older. Returns where they are.
with feed as (
  update movie_feed as f
  set cleared_to = :cleared_to
)
update movie_changes as c
set
  transaction = coalesce(
    :place::xid8, (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1)::text::xid8
  ),
  changed_at = c.changed_at - make_interval(days => :days_old)
where c.transaction = pg_current_xact_id()
returning c.transaction::text as transaction, c.id as change;

-- name: list_samples()
-- Returns the movies that each test begins with.
select m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
from movies as m
where m.created_at < '1901-01-01'
  and m.title like 'qxzvjwk%';

-- name: find_hidden_samples()
-- Returns the movies of this transaction that a condition of your own in movie_matches hides from all lists.
select m.id
from movies as m
where m.xmin = pg_current_xact_id()::xid
  and movie_matches(m.*, '{}') is not true;

-- name: age_clients(ids)
-- \set ids '\'{1,2}\''
-- Makes the last use of the clients a day older; returns their ids.
update clients as c
set last_used_on = c.last_used_on - 1
where c.id = any (:ids)
returning c.id;
