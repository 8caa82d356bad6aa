-- A change of any column of a movie raises its version, also of a column that is added later. Before, a
-- change of another column than those of the API left the version, and with it the ETag.
--
-- `*<>` compares values byte by byte, so it also works for types without `=`, such as json. PostgreSQL
-- computes generated columns after this trigger; until then, they are null in the new row.

-- migrate:up
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

-- migrate:down
create or replace function movies_keep_version() returns trigger language plpgsql as $$
begin
  if (new.id, new.title, new.year, new.runtime, new.genres, new.created_at)
     is distinct from
     (old.id, old.title, old.year, old.runtime, old.genres, old.created_at)
  then
    new.version := old.version + 1;
    -- now() is when the transaction began: one that waited must not turn the time back.
    new.updated_at := greatest(now(), old.updated_at);
  else
    new.version := old.version;
    new.updated_at := old.updated_at;
  end if;
  return new;
end
$$;
