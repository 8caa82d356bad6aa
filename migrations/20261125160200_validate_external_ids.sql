-- Validates the constraints of external ids, without blocking writes.

-- migrate:up
alter table movies
  validate constraint movies_external_id_not_blank,
  validate constraint movies_external_id_at_most_255_bytes,
  validate constraint movies_external_id_no_control_characters;

-- migrate:down
select true; -- they stay valid
