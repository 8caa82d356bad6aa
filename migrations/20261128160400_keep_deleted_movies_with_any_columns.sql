-- A column that a DBA named `o` or `m` was taken for the row, and every deletion failed.

-- migrate:up
-- The triggers write with the rights of the owner, and pg_temp comes last, as for suggestions.
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

create or replace function movies_record_deleted() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  if pg_trigger_depth() > 1 and coalesce(current_setting('catalogue.nested_since', true), '') = '' then
    perform set_config('catalogue.nested_since', nextval('movie_changes_id_seq')::text, true);
  end if;
  insert into movie_changes (transaction, movie_id, version, kind, movie)
  select pg_current_xact_id(), o.id, o.version, 'deleted', to_jsonb(o.*) - 'search'
  from old_movies as o;
  return null;
end
$$;

create or replace function movies_record_truncated() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  insert into movie_changes (transaction, movie_id, version, kind, movie)
  select pg_current_xact_id(), m.id, m.version, 'deleted', to_jsonb(m.*) - 'search'
  from movies as m;
  -- Other levels do not see movies that were created after their snapshot, and truncate these, too.
  if current_setting('transaction_isolation') <> 'read committed' then
    update movie_feed set id = gen_random_uuid();
  end if;
  return null;
end
$$;

-- migrate:down
-- The triggers write with the rights of the owner, and pg_temp comes last, as for suggestions.
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

create or replace function movies_record_deleted() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  if pg_trigger_depth() > 1 and coalesce(current_setting('catalogue.nested_since', true), '') = '' then
    perform set_config('catalogue.nested_since', nextval('movie_changes_id_seq')::text, true);
  end if;
  insert into movie_changes (transaction, movie_id, version, kind, movie)
  select pg_current_xact_id(), o.id, o.version, 'deleted', to_jsonb(o) - 'search'
  from old_movies as o;
  return null;
end
$$;

create or replace function movies_record_truncated() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  insert into movie_changes (transaction, movie_id, version, kind, movie)
  select pg_current_xact_id(), m.id, m.version, 'deleted', to_jsonb(m) - 'search'
  from movies as m;
  -- Other levels do not see movies that were created after their snapshot, and truncate these, too.
  if current_setting('transaction_isolation') <> 'read committed' then
    update movie_feed set id = gen_random_uuid();
  end if;
  return null;
end
$$;
