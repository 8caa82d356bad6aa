-- The feed of changes (GET /v1/changes). The triggers movies_record_* write a row of movie_changes for each
-- movie that a statement creates, changes or deletes.

-- name: get_changes(after, after_id, size)
-- \set after null \set after_id null \set size 100
-- set: transaction_read_only = on
-- Returns up to `size` changes after the row after_id of the transaction `after`; null: from the oldest change that
-- is kept. With each change comes the movie as it is now, or nulls if it is gone; with a deletion, in deleted_movie, also
-- the movie as it was; with an update, in previous, the fields that it changed, as they were; and whose it was: the client
-- (client_name is null if it is gone), or the login of a change in SQL. Without changes, there is one row with nulls. If
-- the feed is off, nothing is returned.
--
-- Only changes of transactions below the horizon are returned: every transaction below it has ended, so no
-- change can come in between later. A transaction that stays open holds back the changes of all later ones:
-- docs/dbas.md#changes says how to find it.
--
-- feed: what cursors belong to. It changes when the feed restarts, and when the database is restored (also in
-- place, by pg_restore --clean), copied or promoted: it may then lack changes that clients have seen. A promoted server
-- has its new timeline in the names of its WAL at once, and in pg_control_checkpoint only after its next checkpoint. A
-- standby knows only that: after a failover, it gives the new feed some minutes later than the primary.
-- as_of: every change that was committed before is below the horizon. If changes are held back, that is the time at
-- which the first one's transaction began; otherwise it is now.
-- is_last: no change is after this row, or after the cursor if there are no changes. Only then the next page starts at
-- next_transaction; otherwise it starts after the last row. So a smaller `limit` loses nothing.
-- next_transaction: the end of the feed, after the last change below the horizon. The horizon itself would be wrong:
-- after a crash, PostgreSQL reuses the numbers of transactions that were not in the WAL yet.
-- is_expired: changes after the cursor may have been cleared; or it is after the end of the feed, which no client
-- has got: a server that lost transactions, such as a restored snapshot of its disk, would reuse their numbers for
-- changes that the client then misses.
with state as materialized (
  select
    md5(concat_ws(' ', f.id, f.tableoid, s.system_identifier, t.timeline, d.oid)) as feed,
    pg_snapshot_xmin(pg_current_snapshot()) as horizon,
    -- Changes at or after its end are of a restored dump: their transactions are in this server's future.
    pg_snapshot_xmax(pg_current_snapshot()) as snapshot_end,
    -- A restored dump has a number of the former server, which may be in this one's future.
    case when f.cleared_to < pg_snapshot_xmin(pg_current_snapshot()) then f.cleared_to else '0' end as cleared_to
  from movie_feed as f
  cross join pg_control_system() as s
  cross join lateral (
    select case
      when pg_is_in_recovery() then (select c.timeline_id from pg_control_checkpoint() as c)
      else ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer
    end as timeline
  ) as t
  join pg_database as d on d.datname = current_database()
  where f.is_on
  -- The planner does not know that there is one row.
  limit 1
)
select
  s.feed, coalesce(h.changed_at, now()) as as_of, n.transaction::text as next_transaction,
  coalesce(:after::xid8 <= s.cleared_to or :after::xid8 > n.transaction, false) as is_expired,
  coalesce(
    (
      coalesce(c.transaction, :after::xid8, s.cleared_to),
      coalesce(c.id, :after_id::bigint, 9223372036854775807)
    ) >= (l.transaction, l.id),
    c.id is null
  ) as is_last,
  c.transaction::text as transaction, c.id as change, c.kind, c.movie_id, c.version as change_version,
  c.changed_at, c.movie::text as deleted_movie, c.previous::text as previous, c.client_id, k.name as client_name, c.login,
  m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
from state as s
left join lateral (
  select c.transaction, c.id
  from movie_changes as c
  where c.transaction < s.horizon
  order by c.transaction desc, c.id desc
  limit 1
) as l on true
left join lateral (
  select c.changed_at
  from movie_changes as c
  where c.transaction >= s.horizon
    and c.transaction < s.snapshot_end
  order by c.transaction, c.id
  limit 1
) as h on true
cross join lateral (
  select (greatest(l.transaction, s.cleared_to)::text::numeric + 1)::text::xid8 as transaction
) as n
left join lateral (
  select
    c.transaction, c.id, c.kind, c.movie_id, c.version, c.changed_at, c.movie, c.previous, c.client_id, c.login
  from movie_changes as c
  where (c.transaction, c.id) > (
      coalesce(:after::xid8, s.cleared_to), coalesce(:after_id::bigint, 9223372036854775807)
    )
    and c.transaction < s.horizon
  order by c.transaction, c.id
  limit :size
) as c on true
left join movies as m on m.id = c.movie_id
left join clients as k on k.id = c.client_id
order by c.transaction, c.id;

-- name: get_movie_changes(id, before, size)
-- \set id 1 \set before null \set size 100
-- set: transaction_read_only = on
-- The history of a movie: returns up to `size` of its changes, the newest first, older than the change `before`; null: from
-- the newest. Columns are as in get_changes, but a change is returned as soon as it is committed.
-- The order is by id: of one movie, each is given while its row is locked. Transactions and versions have another order.
-- is_known: there is the movie, or a change of it. Without changes, there is one row with nulls. If the feed is off,
-- nothing is returned.
select
  exists (select from movies as m where m.id = :id::bigint)
  or exists (select from movie_changes as o where o.movie_id = :id::bigint) as is_known,
  c.id as change, c.kind, c.movie_id, c.version as change_version, c.changed_at, c.movie::text as deleted_movie,
  c.previous::text as previous, c.client_id, k.name as client_name, c.login
from movie_feed as f
left join lateral (
  select c.id, c.kind, c.movie_id, c.version, c.changed_at, c.movie, c.previous, c.client_id, c.login
  from movie_changes as c
  where c.movie_id = :id::bigint
    and c.id < coalesce(:before::bigint, 9223372036854775807)
  order by c.id desc
  limit :size
) as c on true
left join clients as k on k.id = c.client_id
where f.is_on
order by c.id desc;

-- name: detect_changes(since)
-- \set since null
-- set: transaction_read_only = on
-- set: statement_timeout = 250ms
-- Whether a list that the service has in memory is still right: returns the snapshot of this statement, and whether a
-- transaction that it sees, and that the snapshot `since` did not see, has changed movies. Such a transaction began
-- after that snapshot (pg_snapshot_xmax), or was running in it (pg_snapshot_xip). Each is a look-up in the primary key,
-- also if the table was never analysed: the order and the limit see to that. Changes at or after the end of this
-- statement's snapshot are of a restored dump, as in get_changes.
-- state: if it is another one, numbers of transactions cannot be compared, and all lists are fetched anew. It changes
-- when the feed begins anew, is restored or is cleared; when it is another database or server, or one that was started
-- since; with each checkpoint, because one ends the recovery from a crash. After a crash, PostgreSQL gives numbers
-- again whose transactions were not in the WAL yet. It also changes when somebody replaces the filter, movie_matches.
-- Without a row, nothing is known: the feed is off; movies lacks a trigger of the feed, as while a restore copies its rows;
-- or this is a standby, whose snapshots list no running transactions.
select
  pg_current_snapshot()::text as snapshot,
  concat_ws(
    ' ', f.id, f.tableoid, 'movies'::regclass::oid, f.cleared_to,
    (select d.oid from pg_database as d where d.datname = current_database()), pg_postmaster_start_time(), (pg_control_checkpoint()).checkpoint_lsn,
    (select p.xmin from pg_proc as p where p.oid = to_regprocedure('movie_matches(movies,jsonb)'))
  ) as state,
  coalesce(
    (
      select true
      from movie_changes as c
      where c.transaction >= pg_snapshot_xmax(:since::pg_snapshot)
        and c.transaction < pg_snapshot_xmax(pg_current_snapshot())
      order by c.transaction, c.id
      limit 1
    ),
    (
      select true
      from pg_snapshot_xip(:since::pg_snapshot) as r (transaction)
      cross join lateral (
        select from movie_changes as c
        where c.transaction = r.transaction
        order by c.id
        limit 1
      ) as c
      limit 1
    ),
    false
  ) as has_changed
from movie_feed as f
where f.is_on
  and not pg_is_in_recovery()
  and 4 = (
    select count(*)
    from pg_trigger as t
    where t.tgrelid = 'movies'::regclass
      and t.tgname in (
        'movies_record_created', 'movies_record_updated', 'movies_record_deleted', 'movies_record_truncated'
      )
      and t.tgenabled in ('O', 'A')
  );

-- name: measure_changes_delay()
-- set: transaction_read_only = on
-- Returns for how many seconds an open transaction has held back the first change that get_changes cannot return
-- yet (see as_of there); 0: none is held back.
select coalesce(max(extract(epoch from now() - h.changed_at)), 0)::float8 as seconds
from (
  select c.changed_at
  from movie_changes as c
  where c.transaction >= pg_snapshot_xmin(pg_current_snapshot())
    and c.transaction < pg_snapshot_xmax(pg_current_snapshot())
  order by c.transaction, c.id
  limit 1
) as h;

-- name: clear_changes(keep_days, after, after_id, at_most)
-- \set keep_days 30 \set after '\'0\'' \set after_id 0 \set at_most 1000
-- Deletes the at_most oldest changes, up to the first one that is not older than keep_days. Returns how many it deleted,
-- and the last one: the next statement begins after it (after, after_id). Otherwise each statement would read the rows
-- that the former ones have deleted, while a transaction that may still see them keeps vacuum from removing them.
-- If another process has cleared since, so that cleared_to is another transaction than `after`, it begins there.
-- Changes that readers cannot see yet are kept: those above the horizon, and those of a restored dump whose
-- transactions are in this server's future. So cleared_to never is.
-- Another process that clears at the same time deletes nothing.
with feed as materialized (
  select
    f.cleared_to as stored,
    case when f.cleared_to < pg_snapshot_xmin(pg_current_snapshot()) then f.cleared_to else '0' end as cleared_to
  from movie_feed as f
  for update skip locked
),
oldest as materialized (
  select
    c.transaction, c.id,
    bool_and(c.changed_at < now() - make_interval(days => :keep_days)) over (order by c.transaction, c.id) as has_expired
  from feed as f
  cross join lateral (
    select c.transaction, c.id, c.changed_at
    from movie_changes as c
    where (c.transaction, c.id) > (
        f.cleared_to, case when f.cleared_to = :after::xid8 then :after_id::bigint else 0 end
      )
      and c.transaction < pg_snapshot_xmin(pg_current_snapshot())
    order by c.transaction, c.id
    limit :at_most
  ) as c
),
gone as (
  delete from movie_changes as c
  using oldest as o
  where c.transaction = o.transaction
    and c.id = o.id
    and o.has_expired
  returning c.transaction, c.id
),
last as (
  select g.transaction, g.id
  from gone as g
  order by g.transaction desc, g.id desc
  limit 1
),
updated as (
  update movie_feed as m
  set cleared_to = coalesce((select l.transaction from last as l), f.cleared_to)
  from feed as f
  where coalesce((select l.transaction from last as l), f.cleared_to) <> f.stored
)
select
  count(*)::integer as cleared,
  (select l.transaction::text from last as l) as last_transaction,
  (select l.id from last as l) as last_id
from gone as g;
