-- Queries about the schema.

-- name: get_applied_migrations()
-- set: transaction_read_only = on
-- The migrations that this database has had, as run by `python -m service migrate`.
select s.version
from schema_migrations as s;
