-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- No two movies have the same external id. A movie without one has no entry in this index.

-- migrate:up transaction:false
create unique index concurrently movies_external_id_unique on movies (external_id) where external_id is not null;

-- migrate:down
drop index movies_external_id_unique;
