-- Spreadsheets and padded columns leave blanks at the ends of external ids, and each would make another movie. The next
-- file validates the constraint.

-- migrate:up
do $$
declare
  found bigint;
  first_ids text;
begin
  select count(*), string_agg(m.id::text, ', ' order by m.id) filter (where m.place <= 10)
  into found, first_ids
  from (
    select id, row_number() over (order by id) as place
    from movies
    where not (is_visible(left(external_id, 1)) and is_visible(right(external_id, 1)))
  ) as m;
  if found > 0 then
    raise exception using
      errcode = 'check_violation',
      message = 'movies with a blank or invisible character at an end of the external id are in the way: ' || found,
      detail = 'Their ids: ' || first_ids
        || case when found > 10 then format(' and %s more', found - 10) else '' end,
      hint = 'Change or delete these movies, and run migrate again.';
  end if;
end
$$;

alter table movies
  add constraint movies_external_id_trimmed
    check (is_visible(left(external_id, 1)) and is_visible(right(external_id, 1))) not valid;

-- migrate:down
alter table movies drop constraint movies_external_id_trimmed;
