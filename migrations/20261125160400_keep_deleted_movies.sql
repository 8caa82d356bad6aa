-- The feed keeps each deleted movie as it was, whoever deleted it, so that it can be restored until the feed clears its
-- deletion. Only deletions have it: a movie in each change would make the feed three times as large.

-- migrate:up
alter table movie_changes add column movie jsonb;

comment on index movie_changes_deleted is 'The deletions of a movie, to restore it.';
comment on column movie_changes.movie is 'Of a deletion: the movie as it was, for restore_movies.';

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

create function restore_movies(ids bigint[] default null, deleted_by xid8 default null) returns setof movies
  language plpgsql as $$
declare
  -- All but generated ones, also columns that a DBA has added.
  names constant text := (
    select string_agg(quote_ident(a.attname), ', ')
    from pg_attribute as a
    where a.attrelid = 'movies'::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
  );
begin
  -- One after the other: otherwise, one that has seen a deletion could insert the movie after another one has restored
  -- it and somebody has deleted it again, and there would be two movies of the same version.
  perform pg_advisory_xact_lock(hashtextextended('restore_movies', 0));
  return query execute format(
    'insert into movies as m (%1$s)
    overriding system value
    select %1$s
    from (
      select distinct on (c.movie_id) c.transaction, c.movie
      from movie_changes as c
      where c.movie_id = any ($1) and c.kind = ''deleted''
      order by c.movie_id, c.id desc
    ) as last
    cross join jsonb_populate_record(
      null::movies,
      last.movie || jsonb_build_object(''version'', (last.movie ->> ''version'')::integer + 1, ''updated_at'', now())
    ) as r
    where last.movie is not null and ($2 is null or last.transaction = $2)
      and not exists (select from movies as o where o.id = r.id)
    on conflict do nothing
    returning m.*',
    names
  )
  using
    coalesce(
      ids, array(select d.movie_id from movie_changes as d where d.transaction = deleted_by and d.kind = 'deleted')
    ),
    deleted_by;
end
$$;

comment on function restore_movies(bigint[], xid8) is
  'Brings deleted movies back as they were, with their ids and a version more, and returns them: those with these ids, and only those that the transaction deleted_by has deleted, if it is given. It leaves out movies that are there, whose external id another movie has by now, or whose deletion the feed has cleared.';

-- migrate:down
comment on index movie_changes_deleted is null;

drop function restore_movies(bigint[], xid8);

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

create or replace function movies_record_truncated() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  insert into movie_changes (transaction, movie_id, version, kind)
  select pg_current_xact_id(), m.id, m.version, 'deleted'
  from movies as m;
  -- Other levels do not see movies that were created after their snapshot, and truncate these, too.
  if current_setting('transaction_isolation') <> 'read committed' then
    update movie_feed set id = gen_random_uuid();
  end if;
  return null;
end
$$;

alter table movie_changes drop column movie;
