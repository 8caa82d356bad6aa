-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- Totals of lists are estimated with pg_class.reltuples. vacuum derives it from the pages that it reads, which are those
-- that changed last: after some corrections of a part of the catalogue, it was wrong by 22 %. analyze takes a random sample.

-- migrate:up
alter table movies set (autovacuum_analyze_scale_factor = 0.02); -- as often as vacuum

-- migrate:down
alter table movies reset (autovacuum_analyze_scale_factor);
