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
