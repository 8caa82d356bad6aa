-- replaces: 20260105090000..20261124210001 (release 1.1.0)
--
-- The feed of changes (GET /v1/changes): a row for each movie that a statement creates, changes or deletes, whoever sends
-- the statement. docs/decisions/0018-feed-of-changes.md says why it is built so.
--
-- Readers take only rows of transactions below the oldest one that is still running (pg_snapshot_xmin), in the order of
-- (transaction, id): so no change that is committed later comes before one that they have seen.

-- migrate:up
create table movie_changes (
  transaction xid8        not null,
  id          bigint      not null generated always as identity,
  movie_id    bigint      not null,
  changed_at  timestamptz not null default now(),
  version     integer     not null,
  kind        text        not null,
  primary key (transaction, id),
  constraint movie_changes_kind_is_known check (kind in ('created', 'updated', 'deleted'))
);

comment on table movie_changes is
  'The changes of movies, for GET /v1/changes; triggers of movies write them, and the service clears old ones.';
comment on column movie_changes.transaction is 'The one that made the change; transactions are sent in this order.';
comment on column movie_changes.id is 'The order of the changes of a transaction.';
comment on column movie_changes.movie_id is 'Of the movie, which may be gone.';
comment on column movie_changes.changed_at is 'When the transaction began.';
comment on column movie_changes.version is 'Of the movie after the change; of a deleted movie, its last one.';
comment on column movie_changes.kind is 'created, updated or deleted.';

create table movie_feed (
  is_single  boolean primary key default true,
  id         uuid    not null default gen_random_uuid(),
  is_on      boolean not null default true,
  cleared_to xid8    not null default '0',
  constraint movie_feed_has_one_row check (is_single)
);

comment on table movie_feed is 'The state of movie_changes, in one row.';
comment on column movie_feed.is_single is 'Always true, so that there is no second row.';
comment on column movie_feed.id is 'Cursors belong to it: a new id makes all clients start again.';
comment on column movie_feed.is_on is 'False: triggers write no changes (switch_movie_feed).';
comment on column movie_feed.cleared_to is 'Changes of this transaction and of earlier ones may have been cleared.';

insert into movie_feed default values;

-- The triggers write with the rights of the owner, and pg_temp comes last, as for suggestions.
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- A trigger of a DBA may change a movie that the same statement has just created or changed. That change is recorded
-- first, because these triggers run at the end of the statement: the feed had "updated 2" before "created 1". So such a
-- nested change notes its place in catalogue.nested_since, for this transaction, and the statement around it moves the
-- later changes of its movies behind its own; a deletion only if the movie is gone, as it may have been created again.
create function movies_record_created() returns trigger language plpgsql
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

comment on function movies_record_created() is 'Writes a row of movie_changes for each movie that a statement has created.';

create function movies_record_updated() returns trigger language plpgsql
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

comment on function movies_record_updated() is
  'Writes a row of movie_changes for each movie that a statement has given a new version.';

create function movies_record_deleted() returns trigger language plpgsql
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

comment on function movies_record_deleted() is 'Writes a row of movie_changes for each movie that a statement has deleted.';

create function movies_record_truncated() returns trigger language plpgsql
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

comment on function movies_record_truncated() is 'Writes a deletion of each movie before `truncate`.';

create trigger movies_record_created after insert on movies
  referencing new table as new_movies
  for each statement execute function movies_record_created();
create trigger movies_record_updated after update on movies
  referencing old table as old_movies new table as new_movies
  for each statement execute function movies_record_updated();
create trigger movies_record_deleted after delete on movies
  referencing old table as old_movies
  for each statement execute function movies_record_deleted();
create trigger movies_record_truncated before truncate on movies
  for each statement execute function movies_record_truncated();

comment on trigger movies_record_created on movies is 'Writes the feed of changes; switch_movie_feed disables it.';
comment on trigger movies_record_updated on movies is 'Writes the feed of changes; switch_movie_feed disables it.';
comment on trigger movies_record_deleted on movies is 'Writes the feed of changes; switch_movie_feed disables it.';
comment on trigger movies_record_truncated on movies is 'Writes the feed of changes; switch_movie_feed disables it.';

create function switch_movie_feed(switch_on boolean) returns boolean language plpgsql strict as $$
begin
  if (select f.is_on = switch_on from movie_feed as f) then
    return false;
  end if;
  -- These wait for transactions that have changed movies.
  if switch_on then
    alter table movies
      enable trigger movies_record_created, enable trigger movies_record_updated,
      enable trigger movies_record_deleted, enable trigger movies_record_truncated;
  else
    alter table movies
      disable trigger movies_record_created, disable trigger movies_record_updated,
      disable trigger movies_record_deleted, disable trigger movies_record_truncated;
  end if;
  truncate movie_changes;
  update movie_feed set id = gen_random_uuid(), is_on = switch_on, cleared_to = '0';
  return true;
end
$$;

comment on function switch_movie_feed(boolean) is
  'Switches the feed on or off, and returns whether it was the other way before; `migrate` calls it, as [changes] keep_days'
  ' says. Off, it costs nothing. On again, it begins anew: all clients start again.';

-- migrate:down
do $$ begin raise exception 'cannot be reverted: the movies, keys and clients would be lost'; end $$;
