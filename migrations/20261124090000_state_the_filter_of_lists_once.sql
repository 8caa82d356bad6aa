-- For the lists of GET /v1/movies (queries/listing.sql).
--
-- The functions that make a tsquery are plpgsql now: it keeps its plans in the session, while a SQL function is planned
-- for each statement. The count of a search of 800 matches in 100,000 movies takes 0.7 ms, not 1.3.
--
-- The filter and the order of lists are functions of SQL, which PostgreSQL puts in place of their calls. So each stands in
-- one place, and a filter that is null costs nothing. docs/dbas.md says how to change the filter. They are texts, so that
-- no column depends on them.

-- migrate:up
-- All the words, in any order; `cas*` is any word that begins so. A word is also found together with a neighbour
-- (`spider man` finds Spiderman), and words that signs join as one (`s.w.a.t.` finds SWAT). Of a longer search, the
-- first ten words count. Null, which finds nothing, if there is no word in it.
create or replace function title_query(text) returns tsquery
  language plpgsql immutable strict parallel safe as $$
begin
return (
  select string_agg(distinct '(' || forms || ')', ' & ')::tsquery
  from (
    select array_remove(
      array[
        word,
        lag(rtrim(word, '*')) over neighbours || word,
        rtrim(word, '*') || lead(word) over neighbours,
        case when chunk like '%_-_%-_%' then replace(chunk, '-', '') end
      ],
      null
    ) as spellings
    from
      -- Without the last letters of runs; a `*` in front of a letter is a sign.
      string_to_table(
        regexp_replace(
          regexp_replace(mark_signs(fold_letters($1)), '[^ ]\+', '', 'g'), '\*+(?=[^ *])', '-', 'g'
        ), ' '
      ) with ordinality as c (chunk, place),
      string_to_table(chunk, '-') with ordinality as w (word, part)
    where rtrim(word, '*') <> ''
    window neighbours as (order by place, part)
    order by place, part
    limit 10
  ) as words
  cross join lateral (
    select string_agg(
      quote_lexeme(left(rtrim(spelling, '*'), 100)) || case when spelling like '%*' then ':*' else '' end, ' | '
    ) as forms
    from unnest(spellings) as spelling
  ) as joined
);
end
$$;

-- All the genres, regardless of case, accents and surrounding blanks.
create or replace function genres_query(text[]) returns tsquery
  language plpgsql immutable strict parallel safe as $$
begin
return (select string_agg(quote_lexeme(genre_entry(genre)), ' & ')::tsquery from unnest($1) as genre);
end
$$;

-- One of the genres.
create or replace function genres_any_query(text[]) returns tsquery
  language plpgsql immutable strict parallel safe as $$
begin
return (select string_agg(quote_lexeme(genre_entry(genre)), ' | ')::tsquery from unnest($1) as genre);
end
$$;

-- The numbers of these ranges; null if they are from more than 1,000. As `= any`, PostgreSQL finds them by an index and
-- knows about how many movies have them: `year=1950,2020` reads no movies of the years between.
create function list_numbers(parts int8multirange) returns integer[]
  language plpgsql immutable strict parallel safe as $$
begin
  if upper(parts) - lower(parts) > 1000 then
    return null;
  end if;
  return array(select generate_series(lower(part), upper(part) - 1)::integer from unnest(parts) as part);
end
$$;

-- Whether a list has the movie. A filter that is null matches every movie. The genres are separated by commas. The years
-- are from year_from to year_to, and of these only `years`, if it is not null; the same for runtimes.
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

-- Whether a movie comes after the movie that has the id after_id and, as text, the sort value `after`. All follow if these
-- are null.
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

-- migrate:down
drop function movie_follows(text, text, bigint, bigint, text, integer, integer, timestamptz, timestamptz);
drop function movie_matches(
  movies, text, text, text, integer, integer, int8multirange, integer, integer, int8multirange,
  timestamptz, timestamptz, timestamptz, timestamptz
);
drop function list_numbers(int8multirange);

create or replace function title_query(text) returns tsquery
  language sql immutable strict parallel safe
return (
  select string_agg(distinct '(' || forms || ')', ' & ')::tsquery
  from (
    select array_remove(
      array[
        word,
        lag(rtrim(word, '*')) over neighbours || word,
        rtrim(word, '*') || lead(word) over neighbours,
        case when chunk like '%_-_%-_%' then replace(chunk, '-', '') end
      ],
      null
    ) as spellings
    from
      -- Without the last letters of runs; a `*` in front of a letter is a sign.
      string_to_table(
        regexp_replace(
          regexp_replace(mark_signs(fold_letters($1)), '[^ ]\+', '', 'g'), '\*+(?=[^ *])', '-', 'g'
        ), ' '
      ) with ordinality as c (chunk, place),
      string_to_table(chunk, '-') with ordinality as w (word, part)
    where rtrim(word, '*') <> ''
    window neighbours as (order by place, part)
    order by place, part
    limit 10
  ) as words
  cross join lateral (
    select string_agg(
      quote_lexeme(left(rtrim(spelling, '*'), 100)) || case when spelling like '%*' then ':*' else '' end, ' | '
    ) as forms
    from unnest(spellings) as spelling
  ) as joined
);

create or replace function genres_query(text[]) returns tsquery
  language sql immutable strict parallel safe
return (select string_agg(quote_lexeme(genre_entry(genre)), ' & ')::tsquery from unnest($1) as genre);

create or replace function genres_any_query(text[]) returns tsquery
  language sql immutable strict parallel safe
return (select string_agg(quote_lexeme(genre_entry(genre)), ' | ')::tsquery from unnest($1) as genre);
