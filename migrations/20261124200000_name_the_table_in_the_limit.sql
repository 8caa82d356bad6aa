-- The message of the limit of 20261122090100 names the table of its trigger, so that a trigger of another table can use
-- the function. For movies, the message stays as it was.

-- migrate:up
create or replace function movies_limit_affected() returns trigger language plpgsql as $$
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

-- migrate:down
create or replace function movies_limit_affected() returns trigger language plpgsql as $$
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
