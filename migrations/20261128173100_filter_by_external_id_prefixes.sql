-- A sync lists the movies of its source. `like`, with its own signs escaped, uses the index in PostgreSQL 14, too, where `^@`
-- reads the whole table (1.2 s for 2 million movies); it adds the range of the index itself.
-- If you have changed movie_matches, change it again (docs/dbas.md#change-the-filter).

-- migrate:up
comment on index movies_external_id_prefix is 'The filter external_id_prefix of lists.';

-- As in 20261128160100_match_movies_parsed.sql, with the last condition.
create or replace function movie_matches(m movies, filter jsonb) returns boolean
  language sql stable parallel safe
return (
  (filter ->> 'title' is null or m.search @@ title_query(filter ->> 'title'))
  and (filter ->> 'genres' is null or m.search @@ genres_query(string_to_array(filter ->> 'genres', ',')))
  and (filter ->> 'genres_any' is null or m.search @@ genres_any_query(string_to_array(filter ->> 'genres_any', ',')))
  and (filter ->> 'year_from' is null or m.year >= (filter ->> 'year_from')::integer)
  and (filter ->> 'year_to' is null or m.year <= (filter ->> 'year_to')::integer)
  and (
    list_numbers(number_ranges(filter ->> 'years')) is null
    or m.year = any (list_numbers(number_ranges(filter ->> 'years')))
  )
  and (
    list_numbers(number_ranges(filter ->> 'years')) is not null
    or coalesce(m.year::bigint <@ number_ranges(filter ->> 'years'), true)
  )
  and (filter ->> 'runtime_from' is null or m.runtime >= (filter ->> 'runtime_from')::integer)
  and (filter ->> 'runtime_to' is null or m.runtime <= (filter ->> 'runtime_to')::integer)
  and (
    list_numbers(number_ranges(filter ->> 'runtimes')) is null
    or m.runtime = any (list_numbers(number_ranges(filter ->> 'runtimes')))
  )
  and (
    list_numbers(number_ranges(filter ->> 'runtimes')) is not null
    or coalesce(m.runtime::bigint <@ number_ranges(filter ->> 'runtimes'), true)
  )
  and (filter ->> 'created_at_from' is null or m.created_at >= zoned_time(filter ->> 'created_at_from'))
  and (filter ->> 'created_at_to' is null or m.created_at <= zoned_time(filter ->> 'created_at_to'))
  and (filter ->> 'updated_at_from' is null or m.updated_at >= zoned_time(filter ->> 'updated_at_from'))
  and (filter ->> 'updated_at_to' is null or m.updated_at <= zoned_time(filter ->> 'updated_at_to'))
  and (
    filter ->> 'external_id_prefix' is null
    or m.external_id collate "C" like
      replace(replace(replace(filter ->> 'external_id_prefix', '!', '!!'), '%', '!%'), '_', '!_') || '%' escape '!'
  )
);

-- migrate:down
comment on index movies_external_id_prefix is null;

create or replace function movie_matches(m movies, filter jsonb) returns boolean
  language sql stable parallel safe
return (
  (filter ->> 'title' is null or m.search @@ title_query(filter ->> 'title'))
  and (filter ->> 'genres' is null or m.search @@ genres_query(string_to_array(filter ->> 'genres', ',')))
  and (filter ->> 'genres_any' is null or m.search @@ genres_any_query(string_to_array(filter ->> 'genres_any', ',')))
  and (filter ->> 'year_from' is null or m.year >= (filter ->> 'year_from')::integer)
  and (filter ->> 'year_to' is null or m.year <= (filter ->> 'year_to')::integer)
  and (
    list_numbers(number_ranges(filter ->> 'years')) is null
    or m.year = any (list_numbers(number_ranges(filter ->> 'years')))
  )
  and (
    list_numbers(number_ranges(filter ->> 'years')) is not null
    or coalesce(m.year::bigint <@ number_ranges(filter ->> 'years'), true)
  )
  and (filter ->> 'runtime_from' is null or m.runtime >= (filter ->> 'runtime_from')::integer)
  and (filter ->> 'runtime_to' is null or m.runtime <= (filter ->> 'runtime_to')::integer)
  and (
    list_numbers(number_ranges(filter ->> 'runtimes')) is null
    or m.runtime = any (list_numbers(number_ranges(filter ->> 'runtimes')))
  )
  and (
    list_numbers(number_ranges(filter ->> 'runtimes')) is not null
    or coalesce(m.runtime::bigint <@ number_ranges(filter ->> 'runtimes'), true)
  )
  and (filter ->> 'created_at_from' is null or m.created_at >= zoned_time(filter ->> 'created_at_from'))
  and (filter ->> 'created_at_to' is null or m.created_at <= zoned_time(filter ->> 'created_at_to'))
  and (filter ->> 'updated_at_from' is null or m.updated_at >= zoned_time(filter ->> 'updated_at_from'))
  and (filter ->> 'updated_at_to' is null or m.updated_at <= zoned_time(filter ->> 'updated_at_to'))
);
