-- A statement inside a trigger of another table may delete a movie and create it again with the same id. The feed then had
-- "created" before "deleted" of a movie that exists, because the creation moved the deletion behind its own place as if a
-- trigger had deleted the new movie. A deletion is moved only if the movie is gone.

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
        and (c.kind <> 'deleted' or not exists (select from movies as m where m.id = n.id))
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
        and (c.kind <> 'deleted' or not exists (select from movies as m where m.id = n.id))
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

-- migrate:down
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
