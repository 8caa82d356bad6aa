-- What a trigger of a DBA changes within a statement on movies is recorded before that statement's own changes: it is
-- recorded again behind them, so that the feed ends with the last change of each movie. Two functions did so.

-- migrate:up
-- The triggers write with the rights of the owner, and pg_temp comes last, as for suggestions.
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

create function movies_record_nested(ids bigint[], versions integer[]) returns void language plpgsql
  set search_path from current as $$
begin
  with later as (
    delete from movie_changes as c
    using unnest(ids, versions) as n (id, version)
    where c.transaction = pg_current_xact_id()
      and c.id > current_setting('catalogue.nested_since')::bigint
      and c.movie_id = n.id
      and (c.version > n.version or (c.version = n.version and c.kind = 'deleted'))
      and (c.kind <> 'deleted' or not exists (select from movies as m where m.id = n.id))
    returning c.transaction, c.id, c.movie_id, c.version, c.kind, c.movie
  )
  insert into movie_changes (transaction, movie_id, version, kind, movie)
  select l.transaction, l.movie_id, l.version, l.kind, l.movie
  from later as l
  order by l.id;
  if pg_trigger_depth() = 1 then
    perform set_config('catalogue.nested_since', '', true);
  end if;
end
$$;

comment on function movies_record_nested(bigint[], integer[]) is
  'For triggers: records what other triggers have changed in these movies within their statement again, behind it.';

create or replace function movies_record_created() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  insert into movie_changes (transaction, movie_id, version, kind)
  select pg_current_xact_id(), n.id, n.version, 'created'
  from new_movies as n;
  if current_setting('catalogue.nested_since', true) <> '' then
    perform movies_record_nested(array_agg(n.id), array_agg(n.version)) from new_movies as n;
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
    perform movies_record_nested(array_agg(n.id), array_agg(n.version)) from new_movies as n;
  end if;
  return null;
end
$$;

-- migrate:down
-- The triggers write with the rights of the owner, and pg_temp comes last, as for suggestions.
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
      returning c.transaction, c.id, c.movie_id, c.version, c.kind, c.movie
    )
    insert into movie_changes (transaction, movie_id, version, kind, movie)
    select l.transaction, l.movie_id, l.version, l.kind, l.movie
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
      returning c.transaction, c.id, c.movie_id, c.version, c.kind, c.movie
    )
    insert into movie_changes (transaction, movie_id, version, kind, movie)
    select l.transaction, l.movie_id, l.version, l.kind, l.movie
    from later as l
    order by l.id;
    if pg_trigger_depth() = 1 then
      perform set_config('catalogue.nested_since', '', true);
    end if;
  end if;
  return null;
end
$$;

drop function movies_record_nested(bigint[], integer[]);
