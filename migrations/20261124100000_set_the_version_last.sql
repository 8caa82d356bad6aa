-- Triggers of one kind run in the order of their names. A `before update` trigger of a DBA that changes a movie must run
-- before the one that sets the version: otherwise the change has no version, no ETag, and no place in the feed. So this
-- one has a name that comes last; get_schema_faults (queries/schema.sql) finds triggers behind it.
--
-- It also refuses a change of an id: `update movies set id = default` is legal SQL.

-- migrate:up
alter trigger movies_keep_version on movies rename to zzz_movies_keep_version;
comment on column movies.version is 'raised by the trigger zzz_movies_keep_version whenever a movie changes';

create or replace function movies_keep_version() returns trigger language plpgsql as $$
begin
  if new.id <> old.id then
    raise exception using
      errcode = 'generated_always',
      message = format('the id of movie %s cannot be changed', old.id),
      hint = 'Clients and the feed know a movie by its id: insert another movie, and delete this one.';
  end if;
  new.search := old.search;
  new.version := old.version;
  new.updated_at := old.updated_at;
  if new *<> old then
    new.version := old.version + 1;
    -- now() is when the transaction began: one that waited must not turn the time back.
    new.updated_at := greatest(now(), old.updated_at);
  end if;
  return new;
end
$$;

-- migrate:down
alter trigger zzz_movies_keep_version on movies rename to movies_keep_version;
comment on column movies.version is 'raised by the trigger movies_keep_version whenever a movie changes';

create or replace function movies_keep_version() returns trigger language plpgsql as $$
begin
  new.search := old.search;
  new.version := old.version;
  new.updated_at := old.updated_at;
  if new *<> old then
    new.version := old.version + 1;
    -- now() is when the transaction began: one that waited must not turn the time back.
    new.updated_at := greatest(now(), old.updated_at);
  end if;
  return new;
end
$$;
