-- Validates the constraints of external ids, without blocking writes.

-- migrate:up
alter table movies
  validate constraint movies_external_id_not_blank,
  validate constraint movies_external_id_at_most_255_bytes,
  validate constraint movies_external_id_no_control_characters;

-- migrate:down
alter table movies
  drop constraint movies_external_id_not_blank,
  drop constraint movies_external_id_at_most_255_bytes,
  drop constraint movies_external_id_no_control_characters,
  add constraint movies_external_id_not_blank check (is_visible(external_id)) not valid,
  add constraint movies_external_id_at_most_255_bytes check (octet_length(external_id) <= 255) not valid,
  add constraint movies_external_id_no_control_characters
    check (external_id !~ E'[\\u0001-\\u001f\\u007f-\\u009f]') not valid;
