-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- Any change can be undone, not only a deletion: a movie gets the fields that it had in a version, or before a change.

-- migrate:up
create function movie_fields_at(movie bigint, present integer, wanted integer, before bigint default null) returns jsonb
  language plpgsql stable as $$
declare
  fields jsonb := '{}';
  at integer := present; -- null: the movie is gone
  change record;
begin
  for change in
    select c.id, c.version, c.kind, c.movie, c.previous from movie_changes as c where c.movie_id = $1 order by c.id desc
  loop
    exit when at = wanted;
    if change.kind = 'deleted' and at is null then
      fields := change.movie;
      at := change.version;
    elsif change.kind = 'updated' and at = change.version then
      fields := fields || change.previous;
      at := at - 1;
    elsif change.kind = 'created' and at = change.version then
      at := null;
    else
      return null; -- a change in between is not kept
    end if;
    if fields is null then
      return null; -- it was not recorded
    elsif change.id = before then
      wanted := at;
    end if;
  end loop;
  if at is distinct from wanted or at is null then
    return null;
  end if;
  return (
    select coalesce(jsonb_object_agg(a.attname, fields -> a.attname::text), '{}')
    from pg_attribute as a
    where a.attrelid = 'movies'::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
      and a.attname <> all ('{id,version,updated_at}')
      and (present is null or (a.attname <> 'created_at' and a.attidentity <> 'a'))
      and fields ? a.attname::text
      and (fields ->> a.attname::text is not null or not a.attnotnull)
  );
end
$$;

comment on function movie_fields_at(bigint, integer, integer, bigint) is
  'What the fields of a movie were in the version `wanted`, or just before the change with the id `before`, as far as they differ from those of its version `present`; all of them if it is gone (`present` is null). Only columns that can be set now. It walks back from the present, one change after the other; null: one of them is not kept.';

-- A plan for each call: that of an empty table, as after `truncate`, would read the whole table for each of 40,000 movies.
-- Little work_mem: before version 18, PostgreSQL keeps the memory in which each part's rows wait for the triggers until the
-- end of `undo_changes`.
create function restore_movies(restores jsonb, all_or_none boolean default false)
  returns table (number bigint, outcome text, owner bigint, movie movies)
  language plpgsql set plan_cache_mode = force_custom_plan set jit = off set work_mem = '64kB' as $$
#variable_conflict use_variable -- a DBA may add a column of such a name
declare
  -- Not for psql: many movies would need more locks than the server has.
  takes_locks constant boolean := coalesce(current_setting('catalogue.clients', true), '') <> '';
  settable constant text := (
    select string_agg(quote_ident(a.attname), ', ')
    from pg_attribute as a
    where a.attrelid = 'movies'::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
      and a.attidentity <> 'a' and a.attname <> all ('{id,version,created_at,updated_at}')
  );
  -- By id, as joins of arrays take quadratic time.
  own jsonb; -- movies that no other request restores now
  held jsonb; -- movies whose rows are locked
  written jsonb := '{}';
  plan jsonb;
  kept record;
  ids jsonb;
  rule text;
  place text;
begin
  select coalesce(jsonb_object_agg(w.id, null), '{}') into own
  from jsonb_to_recordset(restores) as w (id bigint)
  where not takes_locks or pg_try_advisory_xact_lock(hashtextextended(w.id::text, 4));
  select coalesce(jsonb_object_agg(f.id, null), '{}') into held
  from (
    select m.id
    from movies as m
    where m.id in (
        select w.id
        from jsonb_to_recordset(restores) as w (id bigint, version integer, before bigint)
        where w.version is not null or w.before is not null
      )
      and (select f.is_on from movie_feed as f)
    for no key update skip locked
  ) as f;
  -- The next statement has a snapshot of its own, so it sees all changes of the rows that are locked by now.
  select coalesce(jsonb_agg(to_jsonb(p.*)), '[]') into plan
  from (
    select
      w.id, o.id as owner, f.fields, g.id as deletion,
      case
        when not d.is_on then 'off'
        when m.id is not null and w.version is null and w.before is null then 'there'
        when m.id is not null and w.needs_tag then 'untagged'
        when not own ? w.id::text or (m.id is not null and not held ? w.id::text) then 'locked'
        when m.id is null and (
          g.id is not null or (d.cleared_to <> '0' and w.id <= coalesce(pg_sequence_last_value('movies_id_seq'), 0))
        ) is not true then 'missing'
        when m.id is null and w.is_tagged then 'failed'
        when f.fields is null and w.version > coalesce(
          greatest(m.version, (select max(c.version) from movie_changes as c where c.movie_id = w.id)), w.version
        ) then 'unknown'
        when f.fields is null then 'cleared'
        when m.id is not null and jsonb_populate_record(m.*, f.fields) *= m.* then 'equal'
        when m.id is not null and m.version <> all (w.versions) then 'failed'
        when m.version = any (w.other_than) then 'failed'
        when date_trunc('second', m.updated_at) > w.unmodified_since then 'failed'
        when o.id is not null then 'taken'
        when takes_locks and not pg_try_advisory_xact_lock(hashtextextended(f.fields ->> 'external_id', 3)) then 'locked'
        when m.id is null then 'restored'
        else 'changed'
      end as outcome
    from jsonb_to_recordset(restores) as w (
      id bigint, version integer, before bigint, is_tagged boolean, needs_tag boolean,
      versions integer[], other_than integer[], unmodified_since timestamptz
    )
    cross join movie_feed as d
    left join movies as m on m.id = w.id
    left join lateral (
      select c.id, c.version
      from movie_changes as c
      where c.movie_id = w.id and c.kind = 'deleted'
      order by c.id desc
      limit 1
    ) as g on m.id is null
    cross join lateral (
      select case
        when w.before is not null then movie_fields_at(w.id, m.version, null, w.before)
        when coalesce(w.version, g.version) is not null
        then movie_fields_at(w.id, m.version, coalesce(w.version, g.version))
      end as fields
      offset 0 -- otherwise it is called again for each use
    ) as f
    left join movies as o on o.external_id = f.fields ->> 'external_id' and o.id <> w.id
  ) as p;

  if not all_or_none or not exists (
    select
    from jsonb_to_recordset(plan) as p (outcome text)
    where p.outcome <> all ('{changed,equal,restored}')
  ) then
    if takes_locks then -- for the triggers: only the clients of movies that are written
      perform set_config('catalogue.clients', coalesce(jsonb_object_agg(w.id, w.client), '{}')::text, true)
      from jsonb_to_recordset(restores) as w (id bigint, client bigint)
      join jsonb_to_recordset(plan) as p (id bigint, outcome text) on p.id = w.id and p.outcome in ('changed', 'restored');
    end if;
    if plan @> '[{"outcome": "changed"}]' then
      execute format(
        'with changed as (
          update movies as m
          set (%1$s) = (select %1$s from jsonb_populate_record(m.*, p.fields) as r)
          from jsonb_to_recordset($1) as p (id bigint, outcome text, fields jsonb)
          where m.id = p.id and p.outcome = ''changed''
          returning m.id
        )
        select coalesce(jsonb_object_agg(c.id, null), ''{}'') from changed as c',
        settable
      )
      into ids
      using plan;
      written := written || ids;
    end if;
    -- Movies with the same columns are inserted together. All other columns get their defaults: those that were added
    -- since, and those that may not be null any more.
    for kept in
      select k.names, k.definitions, jsonb_agg(to_jsonb(p.*)) as movies
      from jsonb_to_recordset(plan) as p (id bigint, outcome text, fields jsonb)
      cross join lateral (
        select
          string_agg(quote_ident(a.attname), ', ' order by a.attnum) as names,
          string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' order by a.attnum)
            as definitions
        from pg_attribute as a
        where a.attrelid = 'movies'::regclass and a.attnum > 0 and p.fields ? a.attname::text
      ) as k
      where p.outcome = 'restored'
      group by k.names, k.definitions
    loop
      -- Above all its versions that are kept, so that no entity tag repeats.
      execute format(
        'with restored as (
          insert into movies as m (id, version, updated_at, %1$s)
          overriding system value
          select p.id, (select max(c.version) + 1 from movie_changes as c where c.movie_id = p.id), now(), r.*
          from jsonb_to_recordset($1) as p (id bigint, fields jsonb)
          cross join jsonb_to_record(p.fields) as r (%2$s)
          order by p.id
          returning m.id
        )
        select coalesce(jsonb_object_agg(r.id, null), ''{}'') from restored as r',
        kept.names, kept.definitions
      )
      into ids
      using kept.movies;
      written := written || ids;
    end loop;
    if exists (
      select
      from jsonb_to_recordset(plan) as p (id bigint, outcome text, deletion bigint)
      join movie_changes as c on c.movie_id = p.id and c.kind = 'deleted' and c.id > p.deletion
      where p.outcome = 'restored'
    ) then
      raise exception using
        errcode = 'serialization_failure', message = 'a movie was restored and deleted again meanwhile: restore again';
    end if;
  end if;
  return query
  select
    p.id, p.outcome, case when p.outcome = 'taken' then p.owner end,
    case when p.outcome = 'equal' or written ? p.id::text then m.* end
  from jsonb_to_recordset(plan) as p (id bigint, outcome text, owner bigint)
  left join movies as m on m.id = p.id;
exception
  when data_exception or integrity_constraint_violation or program_limit_exceeded or plpgsql_error then
    get stacked diagnostics rule = constraint_name, place = table_name;
    if rule = 'movies_pkey' then
      raise exception using errcode = 'lock_not_available', message = 'another session has just restored a movie';
    end if;
    raise exception using message = sqlerrm, constraint = rule, table = place;
end
$$;

comment on function restore_movies(jsonb, boolean) is
  'Gives each movie the fields that it had in a version, as a new version: [{"id": 7, "version": 3}]. Without a version, a deleted movie comes back as it was; with `before`, the id of a change, the movie is as it was before that. Returns for each id (`number`) its outcome, which restore_movies in queries/movies.sql explains, and the movie. A movie that the table refuses by now fails all.';

create function undo_changes(
  by_transaction xid8 default null, by_client text default null,
  since timestamptz default '-infinity', until timestamptz default 'infinity'
) returns table (movie_id bigint, outcome text)
  language plpgsql set plan_cache_mode = force_custom_plan set jit = off set work_mem = '64kB' as $$
#variable_conflict use_variable
declare
  own_client bigint;
  ids bigint[];
  chunk bigint[];
  held jsonb;
  plan jsonb;
  parts jsonb[];
  part jsonb;
  done jsonb;
  taken jsonb := '[]'; -- movies whose external id another one has
begin
  if by_transaction is null and by_client is null then
    raise exception 'expected a transaction, or the name of a client or login';
  elsif by_client is not null then
    own_client := (select c.id from clients as c where c.name = by_client);
  end if;
  -- What refers to a movie, and external ids of movies that were created, must be gone before others come back. Of movies
  -- that were created, later ones may refer to earlier ones.
  select array_agg(
    f.movie_id order by f.kind <> 'created', case when f.kind = 'created' then -f.movie_id else f.movie_id end
  ) into ids
  from (
    select distinct on (c.movie_id) c.movie_id, c.kind
    from movie_changes as c
    where (by_transaction is null or c.transaction = by_transaction)
      and (by_client is null or c.client_id = own_client or c.login = by_client)
      and c.changed_at between since and until
    order by c.movie_id, c.id
  ) as f;
  if ids is null then
    raise notice 'nothing is undone: no such change is kept';
    return;
  end if;
  -- In parts, so that millions of movies need little memory.
  for start in 1 .. cardinality(ids) by 1000 loop
    chunk := ids[start : start + 999];
    select coalesce(jsonb_object_agg(f.id, null), '{}') into held
    from (select m.id from movies as m where m.id = any (chunk) for update skip locked) as f;
    -- The next statement has a snapshot of its own, so it sees all changes of the rows that are locked by now.
    with ends as materialized (
      select
        i.id as movie_id, min(c.id) as first, count(c.id) as changes, (array_agg(c.kind order by c.id))[1] as kind,
        (array_agg(c.kind order by c.id desc))[1] as last_kind, (array_agg(c.version order by c.id desc))[1] as last_version
      from unnest(chunk) as i (id)
      left join movie_changes as c
        on c.movie_id = i.id
        and (by_transaction is null or c.transaction = by_transaction)
        and (by_client is null or c.client_id = own_client or c.login = by_client)
        and c.changed_at between since and until
      group by i.id
    )
    select coalesce(jsonb_agg(to_jsonb(p.*)), '[]') into plan
    from (
      select
        e.movie_id as id, e.first as before, array_remove(array[m.version], null) as versions,
        case
          when e.first is null then 'left: a change is not kept any more' -- it has just been cleared
          when m.id is not null and not held ? m.id::text then 'left: another session has locked it'
          when e.changes < (select count(*) from movie_changes as c where c.movie_id = e.movie_id and c.id >= e.first)
            or (m.id is null) <> (e.last_kind = 'deleted') or m.version <> e.last_version
          then 'left: it was changed again'
          when e.kind = 'created' and m.id is null then 'equal'
          when e.kind = 'created' then 'delete'
          else 'restore'
        end as step
      from ends as e
      left join movies as m on m.id = e.movie_id
    ) as p;
    return query
    select p.id, p.step from jsonb_to_recordset(plan) as p (id bigint, step text) where p.step not in ('delete', 'restore');

    parts := array(
      select jsonb_agg(to_jsonb(p.*))
      from jsonb_to_recordset(plan) as p (id bigint, before bigint, versions integer[], step text)
      where p.step in ('delete', 'restore')
      group by p.step
      order by p.step
    );
    while cardinality(parts) > 0 loop
      part := parts[1];
      parts := parts[2:];
      begin
        if part -> 0 ->> 'step' = 'delete' then
          with gone as (
            delete from movies as m
            using jsonb_to_recordset(part) as p (id bigint)
            where m.id = p.id
            returning m.id
          )
          select jsonb_agg(jsonb_build_object('id', p.id, 'outcome', 'deleted', 'is_written', g.id is not null)) into done
          from jsonb_to_recordset(part) as p (id bigint)
          left join gone as g on g.id = p.id;
        else
          select jsonb_agg(jsonb_build_object(
            'id', r.number, 'outcome', r.outcome, 'is_written', (r.movie).id is not null
          )) into done
          from restore_movies(part) as r;
        end if;
        taken := taken || (
          -- A movie that is locked gets other versions below; a deleted one may not have come back until then.
          select coalesce(jsonb_agg(case when p.entry -> 'versions' = '[]' then p.entry else p.entry - 'versions' end), '[]')
          from jsonb_array_elements(part) as p (entry)
          join jsonb_to_recordset(done) as r (id bigint, outcome text) on r.id = (p.entry ->> 'id')::bigint
          where r.outcome = 'taken'
        );
        return query
        select
          r.id,
          case
            when r.is_written then r.outcome
            when r.outcome = 'cleared' then 'left: a change is not kept any more'
            when r.outcome = 'locked' then 'left: another session has locked it'
            when r.outcome in ('changed', 'deleted', 'restored') then 'left: a trigger has prevented it'
            else 'left: it was changed again'
          end
        from jsonb_to_recordset(done) as r (id bigint, outcome text, is_written boolean)
        where r.outcome <> 'taken';
      exception
        when data_exception or integrity_constraint_violation or program_limit_exceeded or plpgsql_error
          or lock_not_available or serialization_failure
        then
          if jsonb_array_length(part) = 1 then
            return query select (part -> 0 ->> 'id')::bigint, 'left: ' || sqlerrm;
          else -- halve the movies until those that are refused are alone
            parts := array(
              select jsonb_agg(e.entry)
              from jsonb_array_elements(part) with ordinality as e (entry, place)
              group by e.place <= jsonb_array_length(part) / 2
            ) || parts;
          end if;
      end;
    end loop;
  end loop;

  -- Movies that have each other's external ids: for a moment, none of them has one. Not those that wait for another movie.
  -- To find these, PostgreSQL needs a hash of all of them in memory: it would build it again for each step of a chain.
  perform set_config('work_mem', '64MB', true);
  with recursive wanted as materialized (
    select t.id, o.id as owner, m.id is not null and t.versions = '{}' as is_back
    from jsonb_to_recordset(taken) as t (id bigint, before bigint, versions integer[])
    left join movies as m on m.id = t.id
    cross join lateral (
      select movie_fields_at(t.id, m.version, null, t.before) ->> 'external_id' as external_id offset 0
    ) as f
    left join movies as o on o.external_id = f.external_id and o.id <> t.id
  ),
  stuck as (
    select w.id from wanted as w where w.is_back or w.owner not in (select o.id from wanted as o)
    union
    select w.id from stuck as s join wanted as w on w.owner = s.id
  )
  select coalesce(jsonb_agg(t.entry) filter (where s.id is null), '[]'), array_agg(s.id) filter (where s.id is not null)
  into part, ids
  from jsonb_array_elements(taken) as t (entry)
  left join stuck as s on s.id = (t.entry ->> 'id')::bigint;
  if part <> '[]' then
    begin
      update movies as m
      set external_id = null
      from jsonb_to_recordset(part) as p (id bigint)
      where m.id = p.id;
      select jsonb_agg(jsonb_build_object(
        'id', r.number, 'outcome', r.outcome, 'is_written', (r.movie).id is not null
      )) into done
      from restore_movies(part, true) as r;
      if done @> '[{"is_written": false}]' or exists (
        select from jsonb_to_recordset(part) as p (id bigint) join movies as m on m.id = p.id where m.external_id is null
      ) then
        raise exception 'not all movies that wait for an external id can be written';
      end if;
      return query select d.id, d.outcome from jsonb_to_recordset(done) as d (id bigint, outcome text);
    exception
      when data_exception or integrity_constraint_violation or program_limit_exceeded or plpgsql_error
        or lock_not_available or serialization_failure
      then
        return query select p.id, 'left: ' || sqlerrm from jsonb_to_recordset(part) as p (id bigint);
    end;
  end if;
  return query select i.id, 'left: another movie has its external id' from unnest(ids) as i (id);
end
$$;

comment on function undo_changes(xid8, text, timestamptz, timestamptz) is
  'Undoes the changes of a transaction, or of a client or login (its name), or those of their changes that were made between two times, of movies that nobody else has changed since. Movies that they created are deleted, those that they deleted come back, and others get the fields that they had before. Returns for each movie what was done, or why it was left. It does not wait for locked rows.';

-- migrate:down
drop function undo_changes(xid8, text, timestamptz, timestamptz);
drop function restore_movies(jsonb, boolean);
drop function movie_fields_at(bigint, integer, integer, bigint);
