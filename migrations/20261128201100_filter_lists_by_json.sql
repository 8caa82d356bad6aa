-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- The filter of lists is one JSON object: a new filter is a member more, and changes no query and no parameter.
-- The functions that the release before calls stay, with a parameter for each filter; the release after this one drops
-- them. If you have changed movie_matches, change the new one, too (docs/dbas.md#change-the-filter).

-- migrate:up
-- PostgreSQL evaluates a call of an immutable function once, before it makes a plan. The casts from text to ranges and to
-- times are only stable, because some depend on settings. These two do not.
create function number_ranges(text) returns int8multirange
  language plpgsql immutable strict parallel safe as $$
begin
  return $1::int8multirange;
end
$$;

comment on function number_ranges(text) is 'Casts a filter of lists, like {[1950,1950],[2020,2020]}.';

create function zoned_time(text) returns timestamptz
  language plpgsql immutable strict parallel safe as $$
begin
  if $1 !~ ':[0-9.]+([Zz]|[+-][0-9:]+)$' then
    raise exception 'expected a time with a time zone, found %', $1;
  end if;
  return $1::timestamptz;
end
$$;

comment on function zoned_time(text) is 'Casts a filter of lists, like 2026-01-05T09:00:00Z, which must have a time zone.';

-- Up to 1,000 numbers are a list, which an index finds; more of them stay ranges. If `years` is not set, both conditions
-- are true. In `coalesce`, PostgreSQL expects that half of the movies match; without it, 0.5 %.
--
-- PostgreSQL puts the text of a function like this one in place of each call. A body that is no string (PostgreSQL 14) is
-- kept parsed: a page by cursor takes 0.41 ms of CPU time in place of 0.69. `\sf` shows such a body as PostgreSQL writes it;
-- below it is as people do. The last condition uses `like`, with its own signs escaped, because PostgreSQL 14 reads the
-- whole table for `^@`.
create function movie_matches(m movies, filter jsonb) returns boolean
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

comment on function movie_matches(movies, jsonb) is
  'Whether a list has the movie. `filter` has the filters that are set, like {"title": "amelie", "year_from": 1990}; {}'
  ' matches every movie. The genres are separated by commas. The years are from year_from to year_to, and of these only'
  ' `years`, if there are some; the same for runtimes. A time has a time zone.';

-- As in 20261124220300_create_suggestions.sql, which explains it, but for the filters.
create function closest_movies(search text, filter jsonb) returns table (id bigint, likeness double precision)
  language plpgsql stable parallel safe rows 100
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
declare
  -- Of each word: the query of its own spellings, that of all spellings, its weight, and its year.
  exact tsquery[];
  near tsquery[];
  weights double precision[];
  word_years integer[];
  -- The places of the words that are conditions.
  conditions integer[];
  wanted tsquery;
  -- Those that are no part of `wanted`.
  other_filters constant jsonb := filter - '{title,genres,genres_any}'::text[];
  candidates bigint[] := '{}';
begin
  with words as materialized (
    select
      row_number() over ()::integer as place, left(rtrim(w.word, '*'), 100) as word, w.word like '%*' as is_prefix,
      -- The last word may not be typed to its end.
      w.word like '%*' or lead(w.word) over () is null as may_go_on
    from string_to_table(translate(mark_signs(fold_letters($1)), '-+', '  '), ' ') as w (word)
    where rtrim(w.word, '*') <> ''
    limit 10
  ),
  pairs as materialized (
    select w.place as first, n.place as last, w.word || n.word as word, n.may_go_on
    from words as w
    join words as n on n.place = w.place + 1
  ),
  catalogue as materialized (
    select c.relnamespace, c.relname, greatest(c.reltuples, 0)::double precision as movies
    from pg_class as c
    where c.oid = 'movies'::regclass
  ),
  frequent as materialized (
    select e.word, e.share * c.movies as movies
    from catalogue as c
    join pg_namespace as s on s.oid = c.relnamespace
    join pg_stats as t on t.schemaname = s.nspname and t.tablename = c.relname and t.attname = 'search'
    cross join unnest(t.most_common_elems::text::text[], t.most_common_elem_freqs) as e (word, share)
    where e.word is not null
  ),
  spellings as materialized (
    select w.place as first, w.place as last, true as is_exact, w.word, quote_lexeme(w.word) as query
    from words as w
    union all
    select w.place, w.place, true, s, quote_lexeme(s)
    from words as w
    cross join unnest(number_spellings(w.word, w.place = 1)) as s
    union all
    select p.first, p.last, false, p.word, quote_lexeme(p.word)
    from pairs as p
    union all
    select w.place, w.place, false, s, quote_lexeme(s)
    from words as w
    -- A short start has too many corrections.
    cross join unnest(correct_word(w.word, w.is_prefix and length(w.word) > 4)) as s
    where length(w.word) between 3 and 30 and w.word !~ '[0-9]'
    union all
    select
      w.place, w.place, false, l.word,
      quote_lexeme(l.word) || ' & (' || array_to_string(
        array(select quote_lexeme(s) from unnest(number_spellings(r.word, false) || r.word) as s), ' | '
      ) || ')'
    from words as w
    cross join generate_series(2, least(length(w.word), 30) - 1) as i
    cross join lateral (select l.word from search_words as l where l.word = left(w.word, i) limit 1) as l
    cross join lateral (values (substr(w.word, i + 1))) as r (word)
    where r.word ~ '^[0-9]$'
      or i < length(w.word) - 1 and (select true from search_words as s where s.word = r.word limit 1)
  ),
  costs as materialized (
    select s.first, s.last, s.is_exact, s.query, coalesce(f.movies, 0) as movies
    from spellings as s
    left join frequent as f on f.word = s.word
    union all
    -- The statistics do not know the many rare words that begin so: count the frequent ones three times, and add a
    -- part of all movies for a start of a few letters.
    select p.first, p.last, p.first = p.last, quote_lexeme(p.word) || ':*',
      (select 3 * coalesce(sum(f.movies), 0) from frequent as f where f.word ^@ p.word)
      + catalogue.movies / 20 ^ (length(p.word) - 1)
    from catalogue, (
      select w.place as first, w.place as last, w.word, w.may_go_on from words as w union all select * from pairs
    ) as p
    where p.may_go_on
  ),
  queries as materialized (
    select
      w.place,
      -- The rarer, the heavier; the longer, as long as nothing was analyzed.
      case a.movies when 0 then length(w.word) else ln(2 + a.movies / (1 + coalesce(f.movies, 0))) end as weight,
      case when w.word ~ '^(18|19|20)[0-9][0-9]$' then w.word::integer end as year,
      string_agg('(' || c.query || ')', ' | ') filter (where c.is_exact) as exact,
      string_agg('(' || c.query || ')', ' | ') as near,
      sum(c.movies) as movies
    from catalogue as a
    cross join words as w
    left join frequent as f on f.word = w.word
    join costs as c on w.place between c.first and c.last
    group by w.place, w.word, a.movies, f.movies
  ),
  chosen as materialized (
    select q.*
    from (
      select q.*, sum(q.movies) over rarest as together
      from queries as q
      where q.year is null or not exists (select from queries as o where o.year is null)
      window rarest as (order by q.movies, q.weight desc, q.place)
      order by q.movies, q.weight desc, q.place
      limit 4
    ) as q
    where q.together < case when q.movies = q.together then 100000 else 40000 end
  )
  select
    array_agg(q.exact::tsquery order by q.place), array_agg(q.near::tsquery order by q.place),
    array_agg(q.weight order by q.place), array_agg(q.year order by q.place),
    array(select c.place from chosen as c)
  into exact, near, weights, word_years, conditions
  from queries as q;

  -- Each combination of conditions that has at least 40 % of their weight, the heaviest first, in their own spellings
  -- and then in all, until there are enough movies.
  for wanted in
    select unnest(c.queries)
    from (
      select
        combination, sum(weights[place]) as weight,
        array[
          string_agg('(' || exact[place]::text || ')', ' & ')::tsquery,
          string_agg('(' || near[place]::text || ')', ' & ')::tsquery
        ] as queries
      from generate_series(1, (1 << cardinality(conditions)) - 1) as combination
      cross join unnest(conditions) with ordinality as c (place, i)
      where (combination >> i::integer - 1) & 1 = 1
      group by combination
    ) as c
    where c.weight >= 0.4 * (select sum(weights[place]) from unnest(conditions) as place)
    order by c.weight desc, c.combination
  loop
    -- The filters, too: otherwise the first 300 might have none that match these.
    if filter ? 'genres' then
      wanted := wanted && genres_query(string_to_array(filter ->> 'genres', ','));
    end if;
    if filter ? 'genres_any' then
      wanted := wanted && genres_any_query(string_to_array(filter ->> 'genres_any', ','));
    end if;
    candidates := array(
      select unnest(candidates)
      union
      select m.id
      from (
        select m.id
        from movies as m
        where m.search @@ wanted
          and (other_filters = '{}' or movie_matches(m.*, other_filters))
        limit 300
      ) as m
    );
    exit when cardinality(candidates) >= 5;
  end loop;

  return query
    select c.id, c.likeness
    from (
      select
        m.id,
        sum(
          w.weight * case
            when m.search @@ w.exact or m.year = w.year then 1
            when m.search @@ w.near then 0.6
            else 0
          end
        ) / sum(w.weight) as likeness
      from movies as m
      cross join unnest(exact, near, weights, word_years) as w (exact, near, weight, year)
      where m.id = any (candidates)
      group by m.id
    ) as c
    where c.likeness >= 0.25;
end
$$;

comment on function closest_movies(text, jsonb) is
  'The movies that come closest to a search, and how close: from 0.25 to 1, which has all of its words. A word may also be'
  ' a number in another spelling, the start of a word if it is the last one or has a `*`, a corrected word, or two words'
  ' that were written as one; two neighbours may be one word. Words may be missing, and the rarer one weighs more. A year'
  ' only counts beside another word. `filter` is as of movie_matches.';

comment on index movies_external_id_prefix is 'The filter external_id_prefix of lists.';

-- The orders of lists, for all queries of queries/listing.sql: `order by` with all columns of movie_order, those that end
-- with _down `desc`, and then the id. A sort that is not asked for is null, which PostgreSQL leaves out; so a list is read
-- along the index of its order.
create function movie_order(
  sort text, id bigint, title text, year integer, runtime integer, created_at timestamptz, updated_at timestamptz
) returns table (
  title_up text, number_up integer, time_up timestamptz, rank_up bigint,
  title_down text, number_down integer, time_down timestamptz, rank_down bigint, id_down bigint
)
  language sql stable parallel safe rows 1 as $$
select
  case sort when 'title' then title end,
  case sort when 'year' then year when 'runtime' then runtime end,
  case sort when 'created_at' then created_at when 'updated_at' then updated_at end,
  case sort when 'relevance' then search_rank(title, year) end,
  case sort when '-title' then title end,
  case sort when '-year' then year when '-runtime' then runtime end,
  case sort when '-created_at' then created_at when '-updated_at' then updated_at end,
  case sort when '-relevance' then search_rank(title, year) end,
  case when sort like '-%' then id end
$$;

comment on function movie_order(text, bigint, text, integer, integer, timestamptz, timestamptz) is
  'What a list is sorted by: each column in its direction, then the id. `sort` is as in the API: title, -year, relevance ...'
  ' Which movies come after one is in movie_follows.';

-- migrate:down
drop function movie_order(text, bigint, text, integer, integer, timestamptz, timestamptz);
comment on index movies_external_id_prefix is null;
drop function closest_movies(text, jsonb);
drop function movie_matches(movies, jsonb);
drop function zoned_time(text);
drop function number_ranges(text);
