-- Validates the constraint, without blocking writes.

-- migrate:up
alter table movies validate constraint movies_external_id_trimmed;

-- migrate:down
alter table movies
  drop constraint movies_external_id_trimmed,
  add constraint movies_external_id_trimmed
    check (is_visible(left(external_id, 1)) and is_visible(right(external_id, 1))) not valid;
