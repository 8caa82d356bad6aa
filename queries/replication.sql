-- How far the primary and its replicas are. With `replica_urls`, each process asks each server every 0.25 s.
-- docs/decisions/0019-read-from-replicas.md says why reads need no more than that.

-- name: get_primary_state()
-- set: transaction_read_only = on
-- The primary: which cluster and database it is, its timeline (which changes when a standby is promoted), its horizon
-- (all transactions with lower numbers have ended), and the end of its WAL that is on disk: it has every commit that was
-- acknowledged. Standbys get no more than that, and what reads and rolled back transactions add may stay in memory for
-- 15 s. On a standby, it fails.
select
  s.system_identifier || ' ' || current_database() as database, left(pg_walfile_name(e.lsn), 8) as timeline,
  (e.lsn - '0/0'::pg_lsn)::bigint as lsn, pg_snapshot_xmin(pg_current_snapshot())::text::bigint as horizon
from pg_control_system() as s
cross join pg_current_wal_flush_lsn() as e (lsn);

-- name: get_replica_state()
-- set: transaction_read_only = on
-- A standby: which cluster and database it is of, how far it has replayed the WAL, how far it has received it, and its
-- horizon: it shows all transactions with lower numbers that were committed. timeline: a standby follows a new one first
-- and says so some minutes later. On a server that is no standby, it returns nothing.
select
  s.system_identifier || ' ' || current_database() as database,
  upper(lpad(to_hex(c.timeline_id), 8, '0')) as timeline,
  (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint as lsn,
  (greatest(pg_last_wal_replay_lsn(), pg_last_wal_receive_lsn()) - '0/0'::pg_lsn)::bigint as received,
  pg_snapshot_xmin(pg_current_snapshot())::text::bigint as horizon
from pg_control_system() as s
cross join pg_control_checkpoint() as c
where pg_is_in_recovery();
