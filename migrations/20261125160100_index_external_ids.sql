-- No two movies have the same external id. A movie without one has no entry in this index.

-- migrate:up transaction:false
create unique index concurrently movies_external_id_unique on movies (external_id) where external_id is not null;

-- migrate:down
drop index movies_external_id_unique;
