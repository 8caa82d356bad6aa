-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- Validates the constraints of external ids, without blocking writes.

-- migrate:up
alter table movies
  validate constraint movies_external_id_not_blank,
  validate constraint movies_external_id_at_most_255_bytes,
  validate constraint movies_external_id_no_control_characters,
  validate constraint movies_external_id_trimmed;

-- migrate:down
-- They go with the column.
