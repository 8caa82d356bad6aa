-- Queries about the schema.

-- name: get_applied_migrations()
-- set: transaction_read_only = on
-- Returns the versions of the applied migrations (`python -m service migrate`).
select s.version
from schema_migrations as s;
