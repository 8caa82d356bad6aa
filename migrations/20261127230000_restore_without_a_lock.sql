-- Two restores do not wait for each other: each waits only for another session that inserts the same movie. Before, all
-- waited for a transaction that had called restore_movies and was still open.

-- migrate:up
create or replace function restore_movies(ids bigint[] default null, deleted_by xid8 default null) returns setof movies
  language plpgsql as $$
declare
  -- All but generated ones, also columns that a DBA has added.
  names constant text := (
    select string_agg(quote_ident(a.attname), ', ')
    from pg_attribute as a
    where a.attrelid = 'movies'::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
  );
  restored movies;
  restored_ids bigint[] := '{}';
begin
  for restored in execute format(
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
    order by r.id
    on conflict do nothing
    returning m.*',
    names
  )
  using
    coalesce(
      ids, array(select d.movie_id from movie_changes as d where d.transaction = deleted_by and d.kind = 'deleted')
    ),
    deleted_by
  loop
    restored_ids := restored_ids || restored.id;
    return next restored;
  end loop;
  -- The insert has seen the last deletion of its snapshot. Since then, other sessions may have restored the movie and
  -- deleted it again: then there would be two movies of the same version.
  if exists (
    select
    from movies as m
    join movie_changes as c on c.movie_id = m.id and c.kind = 'deleted' and c.version >= m.version
    where m.id = any (restored_ids)
  ) then
    raise exception using
      errcode = 'serialization_failure', message = 'a movie was restored and deleted again meanwhile: restore again';
  end if;
end
$$;

-- migrate:down
create or replace function restore_movies(ids bigint[] default null, deleted_by xid8 default null) returns setof movies
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
