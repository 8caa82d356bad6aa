-- A trigger of a DBA may change a movie that the same statement has just created or changed. That change is recorded first,
-- because the triggers of the feed run at the end of the statement: the feed had "updated 2" before "created 1".
-- So such a nested change notes its place in catalogue.nested_since, for this transaction, and the statement around it
-- moves the later changes of its movies behind its own.

-- migrate:up
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

create or replace function movies_record_created() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  insert into movie_changes (transaction, movie_id, version, kind)
  select pg_current_xact_id(), n.id, n.version, 'created'
  from new_movies as n;
  if current_setting('catalogue.nested_since', true) <> '' then
    with later as (
      delete from movie_changes as c
      using new_movies as n
      where c.transaction = pg_current_xact_id()
        and c.id > current_setting('catalogue.nested_since')::bigint
        and c.movie_id = n.id
        and (c.version > n.version or (c.version = n.version and c.kind = 'deleted'))
      returning c.transaction, c.id, c.movie_id, c.version, c.kind
    )
    insert into movie_changes (transaction, movie_id, version, kind)
    select l.transaction, l.movie_id, l.version, l.kind
    from later as l
    order by l.id;
    if pg_trigger_depth() = 1 then
      perform set_config('catalogue.nested_since', '', true);
    end if;
  end if;
  return null;
end
$$;

create or replace function movies_record_updated() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  if pg_trigger_depth() > 1 and coalesce(current_setting('catalogue.nested_since', true), '') = '' then
    perform set_config('catalogue.nested_since', nextval('movie_changes_id_seq')::text, true);
  end if;
  -- A statement that changes nothing keeps the version. Nobody can change an id.
  insert into movie_changes (transaction, movie_id, version, kind)
  select pg_current_xact_id(), n.id, n.version, 'updated'
  from new_movies as n
  join old_movies as o on o.id = n.id
  where n.version <> o.version;
  if current_setting('catalogue.nested_since', true) <> '' then
    with later as (
      delete from movie_changes as c
      using new_movies as n
      where c.transaction = pg_current_xact_id()
        and c.id > current_setting('catalogue.nested_since')::bigint
        and c.movie_id = n.id
        and (c.version > n.version or (c.version = n.version and c.kind = 'deleted'))
      returning c.transaction, c.id, c.movie_id, c.version, c.kind
    )
    insert into movie_changes (transaction, movie_id, version, kind)
    select l.transaction, l.movie_id, l.version, l.kind
    from later as l
    order by l.id;
    if pg_trigger_depth() = 1 then
      perform set_config('catalogue.nested_since', '', true);
    end if;
  end if;
  return null;
end
$$;

create or replace function movies_record_deleted() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  if pg_trigger_depth() > 1 and coalesce(current_setting('catalogue.nested_since', true), '') = '' then
    perform set_config('catalogue.nested_since', nextval('movie_changes_id_seq')::text, true);
  end if;
  insert into movie_changes (transaction, movie_id, version, kind)
  select pg_current_xact_id(), o.id, o.version, 'deleted'
  from old_movies as o;
  return null;
end
$$;

-- migrate:down
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

create or replace function movies_record_created() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  insert into movie_changes (transaction, movie_id, version, kind)
  select pg_current_xact_id(), n.id, n.version, 'created'
  from new_movies as n;
  return null;
end
$$;

create or replace function movies_record_updated() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  -- A statement that changes nothing keeps the version. Nobody can change an id.
  insert into movie_changes (transaction, movie_id, version, kind)
  select pg_current_xact_id(), n.id, n.version, 'updated'
  from new_movies as n
  join old_movies as o on o.id = n.id
  where n.version <> o.version;
  return null;
end
$$;

create or replace function movies_record_deleted() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  insert into movie_changes (transaction, movie_id, version, kind)
  select pg_current_xact_id(), o.id, o.version, 'deleted'
  from old_movies as o;
  return null;
end
$$;
