-- replaces: 20260105090000..20261124210001 (release 1.1.0)
--
-- A statement of the service changes no more movies than were requested. If a query in queries/*.sql loses its `where`, it
-- is refused instead of changing the whole catalogue. docs/decisions/0007-limit-affected-movies.md has the reasons.

-- migrate:up
create function movies_limit_affected() returns trigger language plpgsql as $$
declare
  max_affected text := current_setting('catalogue.max_affected', true);
  affected_rows bigint;
begin
  if max_affected is null or max_affected = '' or pg_trigger_depth() > 1 then
    return null;
  end if;
  select count(*) into affected_rows from affected;
  if affected_rows > max_affected::bigint then
    raise exception using
      errcode = 'cardinality_violation',
      message = format(
        '%s changed %s %s, but at most %s were requested: does the query lack a condition?',
        lower(tg_op), affected_rows, tg_table_name, max_affected
      );
  end if;
  return null;
end
$$;

comment on function movies_limit_affected() is
  'Refuses a statement that changes more rows than catalogue.max_affected, which the service sets for each of its writes.'
  ' Where it is not set, as in psql, nothing is limited. What a trigger changes does not count; what a cascade within the'
  ' table deletes does.';

create trigger movies_limit_inserted after insert on movies
  referencing new table as affected
  for each statement execute function movies_limit_affected();
create trigger movies_limit_updated after update on movies
  referencing old table as affected
  for each statement execute function movies_limit_affected();
create trigger movies_limit_deleted after delete on movies
  referencing old table as affected
  for each statement execute function movies_limit_affected();

comment on trigger movies_limit_inserted on movies is 'Refuses a query that creates more movies than were requested.';
comment on trigger movies_limit_updated on movies is 'Refuses a query that changes more movies than were requested.';
comment on trigger movies_limit_deleted on movies is 'Refuses a query that deletes more movies than were requested.';

-- migrate:down
do $$ begin raise exception 'cannot be reverted: the movies, keys and clients would be lost'; end $$;
