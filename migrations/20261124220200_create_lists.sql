-- replaces: 20260105090000..20261124210001 (release 1.1.0)
--
-- The filter and the order of lists (queries/listing.sql): each is stated once, here. They are functions of SQL, which
-- PostgreSQL puts in place of their calls, so that a filter that is null costs nothing. docs/dbas.md says how to change
-- the filter. They are texts, so that no column depends on them.

-- migrate:up
create function list_numbers(parts int8multirange) returns integer[]
  language plpgsql immutable strict parallel safe as $$
begin
  if upper(parts) - lower(parts) > 1000 then
    return null;
  end if;
  return array(select generate_series(lower(part), upper(part) - 1)::integer from unnest(parts) as part);
end
$$;

comment on function list_numbers(int8multirange) is
  'The numbers of these ranges; null if the first and the last one are more than 1,000 apart. As `= any`, PostgreSQL finds'
  ' them by an index and knows about how many movies have them: `year=1950,2020` reads no movies of the years between.';

-- In `coalesce`, PostgreSQL expects that half of the movies match; without it, 0.5 %.
create function movie_matches(
  m movies, title text, genres text, genres_any text,
  year_from integer, year_to integer, years int8multirange,
  runtime_from integer, runtime_to integer, runtimes int8multirange,
  created_at_from timestamptz, created_at_to timestamptz, updated_at_from timestamptz, updated_at_to timestamptz
) returns boolean
  language sql stable parallel safe as $$
select
  (title is null or m.search @@ title_query(title))
  and (genres is null or m.search @@ genres_query(string_to_array(genres, ',')))
  and (genres_any is null or m.search @@ genres_any_query(string_to_array(genres_any, ',')))
  and (year_from is null or m.year >= year_from)
  and (year_to is null or m.year <= year_to)
  and (list_numbers(years) is null or m.year = any (list_numbers(years)))
  and (list_numbers(years) is not null or coalesce(m.year::bigint <@ years, true))
  and (runtime_from is null or m.runtime >= runtime_from)
  and (runtime_to is null or m.runtime <= runtime_to)
  and (list_numbers(runtimes) is null or m.runtime = any (list_numbers(runtimes)))
  and (list_numbers(runtimes) is not null or coalesce(m.runtime::bigint <@ runtimes, true))
  and (created_at_from is null or m.created_at >= created_at_from)
  and (created_at_to is null or m.created_at <= created_at_to)
  and (updated_at_from is null or m.updated_at >= updated_at_from)
  and (updated_at_to is null or m.updated_at <= updated_at_to)
$$;

comment on function movie_matches is
  'Whether a list has the movie. A filter that is null matches every movie. The genres are separated by commas. The years'
  ' are from year_from to year_to, and of these only `years`, if it is not null; the same for runtimes.';

create function movie_follows(
  sort text, after text, after_id bigint,
  id bigint, title text, year integer, runtime integer, created_at timestamptz, updated_at timestamptz
) returns boolean
  language sql stable parallel safe as $$
select after_id is null or case sort
  when 'id' then id > after_id
  when '-id' then id < after_id
  when 'title' then (title, id) > (after, after_id)
  when '-title' then (title, id) < (after, after_id)
  when 'year' then (year, id) > (after::integer, after_id)
  when '-year' then (year, id) < (after::integer, after_id)
  when 'runtime' then (runtime, id) > (after::integer, after_id)
  when '-runtime' then (runtime, id) < (after::integer, after_id)
  when 'created_at' then (created_at, id) > (after::timestamptz, after_id)
  when '-created_at' then (created_at, id) < (after::timestamptz, after_id)
  when 'updated_at' then (updated_at, id) > (after::timestamptz, after_id)
  when '-updated_at' then (updated_at, id) < (after::timestamptz, after_id)
  when 'relevance' then (search_rank(title, year), id) > (after::bigint, after_id)
  when '-relevance' then (search_rank(title, year), id) < (after::bigint, after_id)
end
$$;

comment on function movie_follows is
  'Whether a movie comes after the movie that has the id after_id and, as text, the sort value `after`. All follow if these'
  ' are null. `sort` is as in the API: title, -year, relevance ...';

-- migrate:down
do $$ begin raise exception 'cannot be reverted: the movies, keys and clients would be lost'; end $$;
