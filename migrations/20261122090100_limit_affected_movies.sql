-- A statement of the service changes no more movies than were requested. If a query in queries/*.sql
-- loses its `where`, it is refused instead of changing the whole catalogue. The service sets
-- catalogue.max_affected for each of its writes; where it is not set, as in psql, nothing is limited.
-- Movies that a trigger changes do not count; those that a cascade within movies deletes do.

-- migrate:up
create function movies_limit_affected() returns trigger language plpgsql as $$
declare
  max_affected text := current_setting('catalogue.max_affected', true);
  affected_movies bigint;
begin
  if max_affected is null or max_affected = '' or pg_trigger_depth() > 1 then
    return null;
  end if;
  select count(*) into affected_movies from affected;
  if affected_movies > max_affected::bigint then
    raise exception using
      errcode = 'cardinality_violation',
      message = format(
        '%s changed %s movies, but at most %s were requested: does the query lack a condition?',
        lower(tg_op), affected_movies, max_affected
      );
  end if;
  return null;
end
$$;

create trigger movies_limit_inserted after insert on movies
  referencing new table as affected
  for each statement execute function movies_limit_affected();
create trigger movies_limit_updated after update on movies
  referencing old table as affected
  for each statement execute function movies_limit_affected();
create trigger movies_limit_deleted after delete on movies
  referencing old table as affected
  for each statement execute function movies_limit_affected();

-- migrate:down
drop trigger movies_limit_inserted on movies;
drop trigger movies_limit_updated on movies;
drop trigger movies_limit_deleted on movies;
drop function movies_limit_affected();
