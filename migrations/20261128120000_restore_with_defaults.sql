-- A restored movie gets the default of each column that was added since its deletion. A movie that the table does not
-- take any more, for example because a type was changed, keeps no other one from being restored. Deletions before the
-- one that is used do not count: the movie may have been imported again since, with a lower version.

-- migrate:up
create or replace function restore_movies(ids bigint[] default null, deleted_by xid8 default null) returns setof movies
  language plpgsql as $$
#variable_conflict use_variable -- a DBA may add a column of such a name
declare
  wanted constant bigint[] := coalesce(
    ids, array(select d.movie_id from movie_changes as d where d.transaction = deleted_by and d.kind = 'deleted')
  );
  kept record;
  restored bigint[];
  rule text;
  half bigint[];
begin
  -- Movies that were kept with the same columns are restored together. All other columns get their defaults: those that
  -- were added since, and those that may not be null any more, if the movie has a null there.
  for kept in
    with columns as materialized (
      select
        a.attname::text as name, a.attnotnull as is_not_null,
        format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)) as definition
      from pg_attribute as a
      where a.attrelid = 'movies'::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
    )
    select
      k.names, k.definitions, array_agg(l.movie_id order by l.movie_id) as ids,
      array_agg(l.id order by l.movie_id) as deletions, count(*)::integer / 2 as middle
    from (
      select distinct on (c.movie_id) c.movie_id, c.id, c.transaction, c.movie
      from movie_changes as c
      where c.movie_id = any (wanted) and c.kind = 'deleted'
      order by c.movie_id, c.id desc
    ) as l
    cross join lateral (
      select string_agg(quote_ident(c.name), ', ') as names, string_agg(c.definition, ', ') as definitions
      from columns as c
      where l.movie ? c.name and (l.movie ->> c.name is not null or not c.is_not_null)
    ) as k
    where l.movie is not null and (deleted_by is null or l.transaction = deleted_by)
    group by k.names, k.definitions
  loop
    begin
      execute format(
        'with restored as (
          insert into movies (%1$s)
          overriding system value
          select r.*
          from unnest($1, $2) as k (movie_id, deletion)
          join movie_changes as c on c.movie_id = k.movie_id and c.id = k.deletion and c.kind = ''deleted''
          cross join jsonb_to_record(
            c.movie || jsonb_build_object(''version'', (c.movie ->> ''version'')::integer + 1, ''updated_at'', now())
          ) as r (%2$s)
          where not exists (select from movies as o where o.id = c.movie_id)
            and not exists (select from movies as o where o.external_id = c.movie ->> ''external_id'')
          order by c.movie_id
          on conflict (id) do nothing
          returning id
        )
        select array_agg(id) from restored',
        kept.names, kept.definitions
      )
      into restored
      using kept.ids, kept.deletions;
    exception when data_exception or integrity_constraint_violation or program_limit_exceeded or plpgsql_error then
      if cardinality(wanted) = 1 then
        get stacked diagnostics rule = constraint_name;
        raise exception 'movie % cannot be restored: %', wanted[1], sqlerrm using constraint = rule;
      end if;
      -- Halve the movies until those that are refused are alone.
      restored := null;
      for half in select (kept.ids)[:kept.middle] union all select (kept.ids)[kept.middle + 1:] loop
        begin
          return query select r.* from restore_movies(half, deleted_by) as r;
        exception when raise_exception then
          raise notice '%', sqlerrm;
        end;
      end loop;
    end;
    -- Since the snapshot with that deletion, other sessions may have restored the movie and deleted it again: there
    -- would be two movies of the same version.
    if exists (
      select
      from unnest(restored) as r (id)
      join unnest(kept.ids, kept.deletions) as k (movie_id, deletion) on k.movie_id = r.id
      join movie_changes as c on c.movie_id = k.movie_id and c.kind = 'deleted' and c.id > k.deletion
    ) then
      raise exception using
        errcode = 'serialization_failure', message = 'a movie was restored and deleted again meanwhile: restore again';
    end if;
    return query select m.* from movies as m where m.id = any (restored) order by m.id;
  end loop;
end
$$;

comment on function restore_movies(bigint[], xid8) is
  'Brings deleted movies back as they were, with their ids and a version more, and returns them: those with these ids, and only those that the transaction deleted_by has deleted, if it is given. Columns that were added since get their defaults. It leaves out movies that are there, whose external id another movie has by now, or whose deletion the feed has cleared; also, with a notice, each movie that the table refuses by now. If that is the only one, it fails.';

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

comment on function restore_movies(bigint[], xid8) is
  'Brings deleted movies back as they were, with their ids and a version more, and returns them: those with these ids, and only those that the transaction deleted_by has deleted, if it is given. It leaves out movies that are there, whose external id another movie has by now, or whose deletion the feed has cleared.';
