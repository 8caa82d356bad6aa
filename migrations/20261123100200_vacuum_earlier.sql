-- Vacuum begins when 2 % of a table's rows are dead, not 20 %. Every field of a movie is in an index, so no
-- change of a field is a HOT update: each leaves a dead row and dead entries in all indexes. With 2 million
-- movies, the default lets lists and counts read up to 400,000 dead rows. All idempotency keys are deleted
-- after a day.
--
-- This waits for no reader or writer, and none waits for it, so its wait for a lock may be long: PostgreSQL
-- cancels an autovacuum that is in the way after 1 s (deadlock_timeout), which is also when `migrate` stops
-- waiting otherwise. The autovacuum begins again later.

-- migrate:up
set local lock_timeout = '10s';
alter table movies set (autovacuum_vacuum_scale_factor = 0.02);
alter table idempotency_keys set (autovacuum_vacuum_scale_factor = 0.02);

-- migrate:down
set local lock_timeout = '10s';
alter table movies reset (autovacuum_vacuum_scale_factor);
alter table idempotency_keys reset (autovacuum_vacuum_scale_factor);
