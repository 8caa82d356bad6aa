-- The feed of changes (GET /v1/changes): a row for each movie that a statement creates, changes or deletes,
-- whoever sends the statement. docs/decisions/0018-feed-of-changes.md says why it is built so.
--
-- Readers take only rows of transactions below the oldest one that is still running (pg_snapshot_xmin), in the
-- order of (transaction, id): so no change that is committed later comes before one that they have seen.

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

comment on table movie_changes is 'the changes of movies, for GET /v1/changes; triggers of movies write them';
comment on column movie_changes.changed_at is 'when the transaction began';
comment on column movie_changes.version is 'of the movie after the change; of a deleted movie, its last one';

create table movie_feed (
  is_single  boolean primary key default true,
  id         uuid    not null default gen_random_uuid(),
  is_on      boolean not null default true,
  cleared_to xid8    not null default '0',
  constraint movie_feed_has_one_row check (is_single)
);

comment on table movie_feed is 'the state of movie_changes, in one row';
comment on column movie_feed.id is 'cursors belong to it: a new id makes all clients start again';
comment on column movie_feed.is_on is 'false: triggers write no changes (switch_movie_feed)';
comment on column movie_feed.cleared_to is 'changes of this transaction and of earlier ones may be cleared';

insert into movie_feed default values;

-- The triggers write with the rights of the owner, so that whoever may change movies needs no more rights.
-- pg_temp comes last: otherwise a temporary table of the writer would be found first
-- (https://www.postgresql.org/docs/current/sql-createfunction.html#SQL-CREATEFUNCTION-SECURITY).
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

create function movies_record_created() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  insert into movie_changes (transaction, movie_id, version, kind)
  select pg_current_xact_id(), n.id, n.version, 'created'
  from new_movies as n;
  return null;
end
$$;

create function movies_record_updated() returns trigger language plpgsql
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

create function movies_record_deleted() returns trigger language plpgsql
  security definer set search_path from current as $$
begin
  insert into movie_changes (transaction, movie_id, version, kind)
  select pg_current_xact_id(), o.id, o.version, 'deleted'
  from old_movies as o;
  return null;
end
$$;

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

-- Switches the feed on or off, and returns whether it was the other way before; `migrate` calls it, as
-- `[changes] keep_days` says. Off, it costs nothing. On again, it begins anew: all clients start again.
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

-- migrate:down
drop trigger movies_record_created on movies;
drop trigger movies_record_updated on movies;
drop trigger movies_record_deleted on movies;
drop trigger movies_record_truncated on movies;
drop function switch_movie_feed(boolean);
drop function movies_record_created();
drop function movies_record_updated();
drop function movies_record_deleted();
drop function movies_record_truncated();
drop table movie_feed;
drop table movie_changes;
