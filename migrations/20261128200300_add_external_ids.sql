-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- The id that a movie has in the system it comes from, such as imdb:tt0111161: a sync finds a movie by it. The next files
-- make it unique, and validate these constraints. null: the movie has none.

-- migrate:up
alter table movies
  add column external_id text,
  add constraint movies_external_id_not_blank check (is_visible(external_id)) not valid,
  add constraint movies_external_id_at_most_255_bytes check (octet_length(external_id) <= 255) not valid,
  add constraint movies_external_id_no_control_characters
    check (external_id !~ E'[\\u0001-\\u001f\\u007f-\\u009f]') not valid,
  add constraint movies_external_id_trimmed
    check (is_visible(left(external_id, 1)) and is_visible(right(external_id, 1))) not valid;

comment on column movies.external_id is
  'The id in the system that the movie comes from, such as imdb:tt0111161; no two movies have the same. null: none.';

-- migrate:down
alter table movies drop column external_id;
