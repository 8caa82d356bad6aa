-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- Finds the movies of one source: those whose external ids begin with `netflix:`. Only in the collation "C" are they
-- together in an index, whatever the collation of the database is.

-- migrate:up transaction:false
create index concurrently movies_external_id_prefix on movies (external_id collate "C") where external_id is not null;

-- migrate:down
drop index movies_external_id_prefix;
