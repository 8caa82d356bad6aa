-- The schema that migrations/*.sql make. `make schema` writes it, and a test compares it.

CREATE FUNCTION public.add_search_words(movies text DEFAULT 'select search from movies'::text) RETURNS bigint
    LANGUAGE plpgsql
    AS $_$
declare
  added bigint;
begin
  insert into search_words (word)
  select s.word collate "C" from ts_stat($1) as s where is_plain_word(s.word)
  except
  select w.word from search_words as w;
  get diagnostics added = row_count;
  return added;
end
$_$;

COMMENT ON FUNCTION public.add_search_words(movies text) IS 'Adds the words that search_words lacks, and returns how many. `movies`: a query of the column `search`.';

CREATE FUNCTION public.closest_movies(search text, filter jsonb) RETURNS TABLE(id bigint, likeness double precision)
    LANGUAGE plpgsql STABLE ROWS 100 PARALLEL SAFE
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $_$
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
$_$;

COMMENT ON FUNCTION public.closest_movies(search text, filter jsonb) IS 'The movies that come closest to a search, and how close: from 0.25 to 1, which has all of its words. A word may also be a number in another spelling, the start of a word if it is the last one or has a `*`, a corrected word, or two words that were written as one; two neighbours may be one word. Words may be missing, and the rarer one weighs more. A year only counts beside another word. `filter` is as of movie_matches.';

CREATE FUNCTION public.closest_movies(search text, genres text DEFAULT NULL::text, genres_any text DEFAULT NULL::text, year_from integer DEFAULT NULL::integer, year_to integer DEFAULT NULL::integer, years int8multirange DEFAULT NULL::int8multirange, runtime_from integer DEFAULT NULL::integer, runtime_to integer DEFAULT NULL::integer, runtimes int8multirange DEFAULT NULL::int8multirange, created_at_from timestamp with time zone DEFAULT NULL::timestamp with time zone, created_at_to timestamp with time zone DEFAULT NULL::timestamp with time zone, updated_at_from timestamp with time zone DEFAULT NULL::timestamp with time zone, updated_at_to timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS TABLE(id bigint, likeness double precision)
    LANGUAGE plpgsql STABLE ROWS 100 PARALLEL SAFE
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $_$
declare
  -- Of each word: the query of its own spellings, that of all spellings, its weight, and its year.
  exact tsquery[];
  near tsquery[];
  weights double precision[];
  word_years integer[];
  -- The places of the words that are conditions.
  conditions integer[];
  wanted tsquery;
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
    if $2 is not null then
      wanted := wanted && genres_query(string_to_array($2, ','));
    end if;
    if $3 is not null then
      wanted := wanted && genres_any_query(string_to_array($3, ','));
    end if;
    candidates := array(
      select unnest(candidates)
      union
      select m.id
      from (
        select m.id
        from movies as m
        where m.search @@ wanted
          and movie_matches(m, null, null, null, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
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
$_$;

COMMENT ON FUNCTION public.closest_movies(search text, genres text, genres_any text, year_from integer, year_to integer, years int8multirange, runtime_from integer, runtime_to integer, runtimes int8multirange, created_at_from timestamp with time zone, created_at_to timestamp with time zone, updated_at_from timestamp with time zone, updated_at_to timestamp with time zone) IS 'The movies that come closest to a search, and how close: from 0.25 to 1, which has all of its words. A word may also be a number in another spelling, the start of a word if it is the last one or has a `*`, a corrected word, or two words that were written as one; two neighbours may be one word. Words may be missing, and the rarer one weighs more. A year only counts beside another word. The other parameters are filters, as of movie_matches.';

CREATE FUNCTION public.correct_word(word text, is_prefix boolean) RETURNS text[]
    LANGUAGE plpgsql STABLE PARALLEL SAFE
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $_$
declare
  n constant integer := length($1);
  half constant integer := n / 2;
begin
  return array(
    with edited as materialized (
      select
        -- Without a letter, or with two that changed places.
        array(
          select overlay($1 placing e.letters from i for e.places)
          from generate_series(1, n) as i
          cross join lateral (values ('', 1), (reverse(substr($1, i, 2)), 2)) as e (letters, places)
        ) as words,
        -- Another letter in place of one, or in between.
        array(
          select overlay($1 placing '_' from i for places) || case when is_prefix then '%' else '' end
          from generate_series(1, n + 1) as i
          cross join generate_series(0, 1) as places
        ) as patterns,
        array(select generate_series(n, case when is_prefix then 30 else n + 1 end)) as lengths
    )
    select c.word
    from (
      select w.word
      from search_words as w
      where w.word = any ((select e.words from edited as e)::text[])
      union
      select w.word
      from search_words as w
      where length(w.word) = any ((select e.lengths from edited as e)::integer[])
        and w.word >= left($1, half) and w.word < left($1, half) || chr(1114111)
        and w.word like any ((select e.patterns from edited as e)::text[])
      union
      select w.word
      from search_words as w
      where length(w.word) = any (array[n, n + 1])
        and reverse(w.word) >= left(reverse($1), n - half)
        and reverse(w.word) < left(reverse($1), n - half) || chr(1114111)
        and w.word like any ((select e.patterns from edited as e)::text[])
    ) as c
    where c.word <> $1
    order by
      (left(c.word, 1) = left($1, 1))::integer + (right(c.word, 1) = right($1, 1))::integer
      + (length(c.word) = n)::integer desc,
      c.word
    limit 20
  );
end
$_$;

COMMENT ON FUNCTION public.correct_word(word text, is_prefix boolean) IS 'Up to 20 words of titles that differ from this one by one letter (missing, added, wrong, or changed places with the next one), the most similar first; with is_prefix, also longer ones that begin with such a word. The mistake is in one half of the word, so the other half finds them along an index.';

CREATE FUNCTION public.find_changed_collation() RETURNS TABLE(actual text, recorded text)
    LANGUAGE plpgsql STABLE
    AS $$
begin
  -- PostgreSQL 14 records no version for the collation of a database.
  if current_setting('server_version_num')::integer >= 150000 then
    return query
    select pg_database_collation_actual_version(d.oid), d.datcollversion
    from pg_database as d
    where d.datname = current_database()
      and d.datcollversion <> pg_database_collation_actual_version(d.oid);
  end if;
end
$$;

COMMENT ON FUNCTION public.find_changed_collation() IS 'A row if the sort rules of the database have changed since its indexes were sorted; get_schema_faults says what to do.';

CREATE FUNCTION public.fold_letters(text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$
begin
  -- Not I by `lower`, which makes it a dotless i in a Turkish locale.
  if octet_length($1) = length($1) then
    return lower(replace($1, 'I', 'i'));
  end if;
  declare
    -- The digits of all scripts, and circled forms that Unicode does not decompose: rows as first-last, each of which
    -- means the character in `meant` and those after it.
    forms constant text :=
      E'\u0660-\u0669\u06f0-\u06f9\u07c0-\u07c9\u0966-\u096f\u09e6-\u09ef\u0a66-\u0a6f\u0ae6-\u0aef\u0b66-\u0b6f'
      '\u0be6-\u0bef\u0c66-\u0c6f\u0ce6-\u0cef\u0d66-\u0d6f\u0de6-\u0def\u0e50-\u0e59\u0ed0-\u0ed9\u0f20-\u0f29'
      '\u1040-\u1049\u1090-\u1099\u17e0-\u17e9\u1810-\u1819\u1946-\u194f\u19d0-\u19d9\u1a80-\u1a89\u1a90-\u1a99'
      '\u1b50-\u1b59\u1bb0-\u1bb9\u1c40-\u1c49\u1c50-\u1c59\ua620-\ua629\ua8d0-\ua8d9\ua900-\ua909\ua9d0-\ua9d9'
      '\ua9f0-\ua9f9\uaa50-\uaa59\uabf0-\uabf9\U000104a0-\U000104a9\U00010d30-\U00010d39\U00010d40-\U00010d49'
      '\U00011066-\U0001106f\U000110f0-\U000110f9\U00011136-\U0001113f\U000111d0-\U000111d9\U000112f0-\U000112f9'
      '\U00011450-\U00011459\U000114d0-\U000114d9\U00011650-\U00011659\U000116c0-\U000116c9\U000116d0-\U000116d9'
      '\U000116da-\U000116e3\U00011730-\U00011739\U000118e0-\U000118e9\U00011950-\U00011959\U00011bf0-\U00011bf9'
      '\U00011c50-\U00011c59\U00011d50-\U00011d59\U00011da0-\U00011da9\U00011f50-\U00011f59\U00016130-\U00016139'
      '\U00016a60-\U00016a69\U00016ac0-\U00016ac9\U00016b50-\U00016b59\U00016d70-\U00016d79\U0001e140-\U0001e149'
      '\U0001e2f0-\U0001e2f9\U0001e4f0-\U0001e4f9\U0001e5f1-\U0001e5fa\U0001e950-\U0001e959\u24eb-\u24f4'
      '\u24f5-\u24fe\u24ff-\u24ff\u2776-\u277f\u2780-\u2789\u278a-\u2793\U0001f150-\U0001f169\U0001f170-\U0001f189';
    meant constant text := repeat('0', 67) || E'\u246a\u2460\u24ea\u2460\u2460\u2460\u24b6\u24b6';
    -- Signs that are words of their own: superscripts, subscripts, circled and squared forms, Roman numerals,
    -- abbreviations in one character, emoji, and signs beyond U+FFFF. Not those of scripts without blanks.
    words constant text :=
      E'\u00aa\u00b2\u00b3\u00b9\u00ba\u02b0-\u02b8\u02e0-\u02e4\u10fc\u1d2c-\u1d2e\u1d30-\u1d3a\u1d3c-\u1d4d'
      '\u1d4f-\u1d6a\u1d78\u1d9b-\u1dbf\u2070\u2071\u2074-\u2079\u207f-\u2089\u2090-\u209c\u20a8\u2100\u2101\u2103'
      '\u2105\u2106\u2109\u2116\u2120-\u2122\u213b\u2160-\u217f\u2460-\u24ea\u2c7c\u2c7d\u2d6f\u3200-\u321e'
      '\u3250-\u327e\u32b1-\u32cf\u3358-\u337a\u3380-\u33ff\ua69c\ua69d\ua770\ua7f2-\ua7f4\ua7f8\ua7f9\uab5c-\uab5f'
      '\uab69\ufdfa-\ufdfc\U00010100-\U00010102\U00010137-\U0001013f\U00010179-\U00010189\U0001018c-\U0001018e'
      '\U00010190-\U0001019c\U000101a0\U000101d0-\U000101fc\U0001039f\U000103d0\U0001056f\U00010781-\U00010785'
      '\U00010787-\U000107b0\U000107b2-\U000107ba\U00010857\U00010877\U00010878\U0001091f\U0001093f'
      '\U00010a50-\U00010a58\U00010a7f\U00010ac8\U00010af0-\U00010af6\U00010b39-\U00010b3f\U00010b99-\U00010b9c'
      '\U00010ead\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047-\U0001104d\U000110bb-\U000110c1\U000110cd'
      '\U00011140-\U00011143\U00011174\U00011175\U000111c5-\U000111c8\U000111cd\U000111db\U000111dd-\U000111df'
      '\U00011238-\U0001123d\U000112a9\U000113d4\U000113d5\U000113d7\U000113d8\U0001144b-\U0001144f'
      '\U0001145a\U0001145b\U0001145d\U000114c6\U000115c1-\U000115d7\U00011641-\U00011643\U00011660-\U0001166c'
      '\U000116b9\U0001173c-\U0001173f\U0001183b\U00011944-\U00011946\U000119e2\U00011a3f-\U00011a46'
      '\U00011a9a-\U00011a9c\U00011a9e-\U00011aa2\U00011b00-\U00011b09\U00011c41-\U00011c45\U00011c70\U00011c71'
      '\U00011ef7\U00011ef8\U00011f43-\U00011f4f\U00011fd5-\U00011ff1\U00011fff\U00012470-\U00012474'
      '\U00012ff1\U00012ff2\U00016a6e\U00016a6f\U00016af5\U00016b37-\U00016b3f\U00016b44\U00016b45'
      '\U00016d6d-\U00016d6f\U00016e97-\U00016e9a\U00016fe2\U0001bc9c\U0001bc9f\U0001cc00-\U0001ccd5'
      '\U0001cd00-\U0001ceb3\U0001cf50-\U0001cfc3\U0001d000-\U0001d0f5\U0001d100-\U0001d172\U0001d17b-\U0001d241'
      '\U0001d245\U0001d300-\U0001d356\U0001d800-\U0001d9ff\U0001da37-\U0001da3a\U0001da6d-\U0001da74'
      '\U0001da76-\U0001da83\U0001da85-\U0001da8b\U0001e14f\U0001e2ff\U0001e5ff\U0001e95e\U0001e95f\U0001ecac'
      '\U0001ecb0\U0001ed2e\U0001eef0\U0001eef1\U0001f000-\U0001f1ff\U0001f203-\U0001f20f\U0001f23c-\U0001f23f'
      '\U0001f249-\U0001f24f\U0001f252-\U0001fbca';
    -- Accents that Unicode decomposes into a blank and a mark.
    accents constant text :=
      E'\u00a8\u00af\u00b4\u00b8\u02d8-\u02dd\u037a\u0384\u0385\u1fbd\u1fbf-\u1fc1\u1fcd-\u1fcf\u1fdd-\u1fdf'
      '\u1fed\u1fee\u1ffd\u1ffe\u2017\u203e\u309b\u309c\ufc5e-\ufc63\ufe49-\ufe4c\ufe70\ufe72\ufe74\ufe76\ufe78'
      '\ufe7a\ufe7c\ufe7e\uffe3';
    fractions constant text := E'\u00bc-\u00be\u2150-\u215f\u2189';
    folded text := $1;
  begin
    if folded ~ ('[' || forms || ']') then
      select translate(
        folded, string_agg(form, ''),
        string_agg(chr(ascii(substr(meant, n::integer, 1)) + ascii(form) - ascii(ends[1])), '')
      )
      into folded
      from (select distinct match[1] as form from regexp_matches(folded, '[' || forms || ']', 'g') as match) as found
      join regexp_matches(forms, '(.)-(.)', 'g') with ordinality as r (ends, n)
        on ascii(form) between ascii(ends[1]) and ascii(ends[2]);
    end if;
    if folded ~ ('[' || words || accents || fractions || ']') then
      folded := regexp_replace(folded, '([' || fractions || '])', E' \\1\x1f', 'g'); -- 9½ is 9 1/2
      folded := regexp_replace(folded, '[' || accents || ']', E'\x1f', 'g');
      folded := replace(regexp_replace(folded, '([' || words || ']+)', E'\x1f\\1\x1f', 'g'), E'\x1f*', '*');
    end if;
    folded := lower(replace(normalize(folded, nfkd), 'I', 'i'));
    folded := regexp_replace(
      folded,
      E'[\u00ad\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u061c\u0640'
      '\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u0898-\u089f\u08ca-\u08e1'
      '\u08e3-\u08ff\u115f\u1160\u135d-\u135f\u17b4\u17b5\u180b-\u180f\u1ab0-\u1aff\u1dc0-\u1dff\u200b-\u200f'
      '\u202a-\u202e\u2060-\u206f\u20d0-\u20ff\u2cef-\u2cf1\u2de0-\u2dff\u302a-\u302d\u3164\ua66f-\ua672'
      '\ua674-\ua67d\ua69e\ua69f\ufb1e\ufe00-\ufe0f\ufe20-\ufe2f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U00013440'
      '\U00016fe4\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+',
      '', 'g'
    );
    -- Of Arabic: alif wasla, ta marbuta, alif maqsura and Persian yeh, Persian kaf.
    folded := translate(
      folded,
      E'łŁøØđĐðÐħĦıςþÞæÆœŒẞ\u0671\u0629\u0649\u06cc\u06a9',
      E'llooddddhhiσþþææœœß\u0627\u0647\u064a\u064a\u0643'
    );
    folded := replace(replace(replace(replace(folded, 'þ', 'th'), 'æ', 'ae'), 'œ', 'oe'), 'ß', 'ss');
    return case when btrim(folded, E' \x1f') = '' then $1 else folded end; -- a title of marks alone
  end;
end
$_$;

COMMENT ON FUNCTION public.fold_letters(text) IS 'The text in small letters without accents, other marks and invisible characters; digits of all scripts are 0 to 9. U+001F stands beside a sign that is a word of its own (Alien³). Only `lower` depends on the locale: in the locale C of libc, it knows a to z alone.';

CREATE FUNCTION public.genre_entry(text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (' '::text || btrim(translate(public.fold_letters("left"($1, 100)), '	

   ⠀'::text, repeat(' '::text, 10))));

COMMENT ON FUNCTION public.genre_entry(text) IS 'A genre as the column `search` of movies has it. It begins with a blank, as no word of a title does.';

CREATE FUNCTION public.genres_any_query(text[]) RETURNS tsquery
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$
begin
return (select string_agg(quote_lexeme(genre_entry(genre)), ' | ')::tsquery from unnest($1) as genre);
end
$_$;

COMMENT ON FUNCTION public.genres_any_query(text[]) IS 'The filter `genres_any` of lists: at least one of them.';

CREATE FUNCTION public.genres_query(text[]) RETURNS tsquery
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$
begin
return (select string_agg(quote_lexeme(genre_entry(genre)), ' & ')::tsquery from unnest($1) as genre);
end
$_$;

COMMENT ON FUNCTION public.genres_query(text[]) IS 'The filter `genres` of lists: all of them, regardless of case, accents and surrounding blanks.';

CREATE FUNCTION public.is_plain_word(text) RETURNS boolean
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ((length($1) <= 30) AND ($1 ~ '^[a-z0-9\u00df-\u0dff\u10a0-\u11ff\u1e00-\u1fff]+$'::text));

COMMENT ON FUNCTION public.is_plain_word(text) IS 'Whether a misspelt word may be corrected to it: it has at most 30 characters, all of alphabets or digits. A Korean syllable is folded to its letters. The other words are signs, pairs of scripts without blanks, and genres.';

CREATE FUNCTION public.is_visible(text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$
begin
  return $1 ~
    E'[^\\u0001-\\u0020\\u007f-\\u00a0\\u00ad\\u034f\\u061c\\u115f-\\u1160\\u1680\\u17b4-\\u17b5\\u180b-\\u180f'
    '\\u2000-\\u200f\\u2028-\\u202f\\u205f-\\u206f\\u2800\\u3000\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0'
    '\\ufff0-\\ufffc\\U00013430-\\U00013442\\U00016fe4\\U0001bca0-\\U0001bca3\\U0001d159\\U0001d173-\\U0001d17a'
    '\\U000e0000-\\U000e0fff]';
end
$_$;

COMMENT ON FUNCTION public.is_visible(text) IS 'Whether a title or genre has a character that can be seen: not only blanks, control characters, fillers, and characters that Unicode calls ignorable, such as a zero width space.';

CREATE FUNCTION public.list_numbers(parts int8multirange) RETURNS integer[]
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $$
begin
  if upper(parts) - lower(parts) > 1000 then
    return null;
  end if;
  return array(select generate_series(lower(part), upper(part) - 1)::integer from unnest(parts) as part);
end
$$;

COMMENT ON FUNCTION public.list_numbers(parts int8multirange) IS 'The numbers of these ranges; null if the first and the last one are more than 1,000 apart. As `= any`, PostgreSQL finds them by an index and knows about how many movies have them: `year=1950,2020` reads no movies of the years between.';

CREATE FUNCTION public.mark_signs(text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$
declare
  -- Letters of scripts without blanks.
  run constant text := E'\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff'
    '\u3400-\u9fff\U00020000-\U0003ffff';
  marked text;
begin
  if octet_length($1) = length($1) then
    marked := regexp_replace($1, E'[\u0001-\u001f!-)+-/:-@\\[-`{-\u007f]', '-', 'g');
  else
    -- The punctuation and symbols of all scripts, as they are after fold_letters.
    marked := regexp_replace(
      $1,
      E'[\u0001-\u001f!-)+-/:-@\\[-`{-\u007f\u0080-\u00bf\u00d7\u00f7\u02b9-\u02ff\u0374\u0375\u03f6\u0482'
      '\u0559-\u055f\u0589-\u058f\u05be\u05c0\u05c3\u05c6\u05f3-\u060f\u061b-\u061f\u066a-\u066d\u06d4'
      '\u06dd\u06de\u06e9\u06fd\u06fe\u0700-\u070f\u07f4-\u07f9\u07fe\u07ff\u0830-\u083e\u085e\u0888\u0890\u0891'
      '\u08e2\u0964\u0965\u0970\u09f2\u09f3\u09fa\u09fb\u09fd\u0a76\u0af0\u0af1\u0b70\u0bf3-\u0bfa\u0c77\u0c7f'
      '\u0c84\u0d4f\u0d79\u0df4\u0e3f\u0e4f\u0e5a\u0e5b\u0f01-\u0f17\u0f1a-\u0f1f\u0f34\u0f36\u0f38\u0f3a-\u0f3d'
      '\u0f85\u0fbe-\u0fc5\u0fc7-\u0fda\u104a-\u104f\u109e\u109f\u10fb\u1360-\u1368\u1390-\u1399\u1400'
      '\u166d\u166e\u1680\u169b\u169c\u16eb-\u16ed\u1735\u1736\u17d4-\u17d6\u17d8-\u17db\u1800-\u180a'
      '\u1940-\u1945\u19de-\u19ff\u1a1e\u1a1f\u1aa0-\u1aa6\u1aa8-\u1aad\u1b5a-\u1b6a\u1b74-\u1b7e\u1bfc-\u1bff'
      '\u1c3b-\u1c3f\u1c7e\u1c7f\u1cc0-\u1cc7\u1cd3\u2000-\u20cf\u2104-\u212e\u213a-\u214d\u214f\u218a-\u2bff'
      '\u2ce5-\u2cea\u2cf9-\u2cfc\u2cfe\u2cff\u2d70\u2e00-\u3004\u3008-\u3020\u3030\u3037\u303d-\u303f\u30a0'
      '\u30fb\u3190\u3191\u31c0-\u31ef\u327f\u4dc0-\u4dff\ua490-\ua4c6\ua4fe\ua4ff\ua60d-\ua60f\ua673\ua67e'
      '\ua6f2-\ua716\ua720\ua721\ua789-\ua78c\ua828-\ua82b\ua836-\ua839\ua874-\ua877\ua8ce\ua8cf\ua8f8-\ua8fa'
      '\ua8fc\ua92e\ua92f\ua95f\ua9c1-\ua9cd\ua9de\ua9df\uaa5c-\uaa5f\uaa77-\uaa79\uaade\uaadf\uaaf0\uaaf1\uab5b'
      '\uab6a\uab6b\uabeb\ufb29-\ufe6f\ufffc\ufffd]',
      '-', 'g'
    );
    if marked ~ ('[' || run || ']') then
      marked := (
        select string_agg(
          part[1] || case length(part[2])
            when 0 then ''
            when 1 then ' ' || part[2] || '* '
            else ' ' || (
              select string_agg(substr(part[2], n, 2), ' ' order by n) from generate_series(1, length(part[2]) - 1) as n
            ) || ' ' || right(part[2], 1) || '+ '
          end,
          '' order by place
        )
        from regexp_matches(marked, '([^' || run || ']*)([' || run || ']*)', 'g') with ordinality as m (part, place)
      );
    end if;
  end if;
  if translate(marked, ' *-', '') = '' then
    -- There are only signs: they are the word. `*`, `+` and `-` have a meaning here, so their full-width forms stand
    -- for them: fold_letters has replaced all other full-width signs.
    return translate($1, E'*+- \t\n\r\x1f', '＊＋－');
  end if;
  return marked;
end
$_$;

COMMENT ON FUNCTION public.mark_signs(text) IS 'Folded text with `-` for each sign but `*`. In scripts without blanks (Thai, Lao, Burmese, Khmer, Kana, Han), each pair of neighbouring letters is a word, so that a title is found by any part: 千と千尋 becomes 千と と千 千尋 尋+. The last letter is for searches of one letter, which become 尋*.';

CREATE FUNCTION public.movie_fields_at(movie bigint, present integer, wanted integer, before bigint DEFAULT NULL::bigint) RETURNS jsonb
    LANGUAGE plpgsql STABLE
    AS $_$
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
$_$;

COMMENT ON FUNCTION public.movie_fields_at(movie bigint, present integer, wanted integer, before bigint) IS 'What the fields of a movie were in the version `wanted`, or just before the change with the id `before`, as far as they differ from those of its version `present`; all of them if it is gone (`present` is null). Only columns that can be set now. It walks back from the present, one change after the other; null: one of them is not kept.';

CREATE FUNCTION public.movie_follows(sort text, after text, after_id bigint, id bigint, title text, year integer, runtime integer, created_at timestamp with time zone, updated_at timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
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

COMMENT ON FUNCTION public.movie_follows(sort text, after text, after_id bigint, id bigint, title text, year integer, runtime integer, created_at timestamp with time zone, updated_at timestamp with time zone) IS 'Whether a movie comes after the movie that has the id after_id and, as text, the sort value `after`. All follow if these are null. `sort` is as in the API: title, -year, relevance ...';

CREATE FUNCTION public.title_entries(text) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET standard_conforming_strings TO 'on'
    AS $_$
declare
  words text := translate($1, '*+-', '   ');
begin
  if words <> $1 then
    words := words || ' ' || translate($1, '*+-', '');
  end if;
  if length(words) > 100 then
    words := regexp_replace(words, '([^ ]{100})[^ ]+', '\1', 'g');
  end if;
  return array_remove(string_to_array(words, ' '), '');
end
$_$;

COMMENT ON FUNCTION public.title_entries(text) IS 'The words of a title whose signs are marked: the parts between the signs, and what they make together. A word is cut after 100 letters, here and in a search: an entry of the index has a limit.';

CREATE FUNCTION public.movie_search(title text, genres text[]) RETURNS tsvector
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN array_to_tsvector(((public.title_entries(public.mark_signs(public.fold_letters("left"(title, 500)))) || CASE WHEN (title ~~ '%&%'::text) THEN ARRAY['and'::text] ELSE NULL::text[] END) || array_remove(ARRAY[public.genre_entry((genres)[1]), public.genre_entry((genres)[2]), public.genre_entry((genres)[3]), public.genre_entry((genres)[4]), public.genre_entry((genres)[5])], NULL::text)));

COMMENT ON FUNCTION public.movie_search(title text, genres text[]) IS 'What a movie is found by: the column `search` of movies. The rules of movies are checked later, so there may be text that they refuse: it is cut.';

CREATE FUNCTION public.number_ranges(text) RETURNS int8multirange
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$
begin
  return $1::int8multirange;
end
$_$;

COMMENT ON FUNCTION public.number_ranges(text) IS 'Casts a filter of lists, like {[1950,1950],[2020,2020]}.';

CREATE FUNCTION public.title_query(text) RETURNS tsquery
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET standard_conforming_strings TO 'on'
    AS $_$
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
    ) || case when count(*) over () > 1 then number_spellings(rtrim(word, '*'), row_number() over neighbours = 1) end
      as spellings
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
$_$;

COMMENT ON FUNCTION public.title_query(text) IS 'The filter `title` of lists: all the words, in any order; `cas*` is any word that begins so. A word is also found together with a neighbour (`spider man` finds Spiderman), and words that signs join as one (`s.w.a.t.` finds SWAT). Of a longer search, the first ten words count. Null, which finds nothing, if there is no word in it. A number from 1 to 20 is found in every spelling, unless it is the only word: `seven` would list 7:19 before Seven.';

CREATE FUNCTION public.zoned_time(text) RETURNS timestamp with time zone
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    AS $_$
begin
  if $1 !~ ':[0-9.]+([Zz]|[+-][0-9:]+)$' then
    raise exception 'expected a time with a time zone, found %', $1;
  end if;
  return $1::timestamptz;
end
$_$;

COMMENT ON FUNCTION public.zoned_time(text) IS 'Casts a filter of lists, like 2026-01-05T09:00:00Z, which must have a time zone.';

CREATE TABLE public.movies (
    id bigint NOT NULL,
    title text NOT NULL,
    year integer NOT NULL,
    runtime integer NOT NULL,
    genres text[] NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    search tsvector GENERATED ALWAYS AS (public.movie_search(title, genres)) STORED NOT NULL,
    external_id text,
    CONSTRAINT movies_external_id_at_most_255_bytes CHECK ((octet_length(external_id) <= 255)),
    CONSTRAINT movies_external_id_no_control_characters CHECK ((external_id !~ '[\u0001-\u001f\u007f-\u009f]'::text)),
    CONSTRAINT movies_external_id_not_blank CHECK (public.is_visible(external_id)),
    CONSTRAINT movies_external_id_trimmed CHECK ((public.is_visible("left"(external_id, 1)) AND public.is_visible("right"(external_id, 1)))),
    CONSTRAINT movies_genres_at_most_100_bytes CHECK (((octet_length(genres[1]) <= 100) AND (octet_length(genres[2]) <= 100) AND (octet_length(genres[3]) <= 100) AND (octet_length(genres[4]) <= 100) AND (octet_length(genres[5]) <= 100))),
    CONSTRAINT movies_genres_different CHECK (((genres[1] <> ALL (genres[2:5])) AND (genres[2] <> ALL (genres[3:5])) AND (genres[3] <> ALL (genres[4:5])) AND (genres[4] <> ALL (genres[5:5])))),
    CONSTRAINT movies_genres_no_null CHECK ((num_nulls(VARIADIC genres) = 0)),
    CONSTRAINT movies_genres_not_empty CHECK ((public.is_visible(genres[1]) AND public.is_visible(genres[2]) AND public.is_visible(genres[3]) AND public.is_visible(genres[4]) AND public.is_visible(genres[5]))),
    CONSTRAINT movies_genres_one_to_five CHECK (((array_ndims(genres) = 1) AND (array_lower(genres, 1) = 1) AND ((cardinality(genres) >= 1) AND (cardinality(genres) <= 5)))),
    CONSTRAINT movies_runtime_positive CHECK ((runtime > 0)),
    CONSTRAINT movies_title_at_most_500_bytes CHECK ((octet_length(title) <= 500)),
    CONSTRAINT movies_title_not_blank CHECK (public.is_visible(title)),
    CONSTRAINT movies_version_positive CHECK ((version > 0)),
    CONSTRAINT movies_year_1888_or_later CHECK ((year >= 1888))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02');

COMMENT ON TABLE public.movies IS 'The catalogue. Anybody may write it: constraints and triggers keep the rules, versions, the feed and the words.';

COMMENT ON COLUMN public.movies.id IS 'Clients know a movie by it: it never changes, and no other movie gets it again.';

COMMENT ON COLUMN public.movies.title IS 'As clients sent it: not blank, at most 500 bytes of UTF-8.';

COMMENT ON COLUMN public.movies.year IS 'Of the release, from 1888; the service also refuses years in the future.';

COMMENT ON COLUMN public.movies.runtime IS 'In minutes, at least 1; clients see `107 mins`.';

COMMENT ON COLUMN public.movies.genres IS 'One to five different ones, of 1 to 100 bytes each, in the order that clients sent.';

COMMENT ON COLUMN public.movies.version IS 'The trigger zzz_movies_keep_version raises it whenever a movie changes; the ETag has it.';

COMMENT ON COLUMN public.movies.created_at IS 'When the transaction began that created the movie.';

COMMENT ON COLUMN public.movies.updated_at IS 'When the transaction of the last change began; a trigger keeps it.';

COMMENT ON COLUMN public.movies.search IS 'The words of the title and the genres: `search @@ title_query(''spider man'')` finds movies.';

COMMENT ON COLUMN public.movies.external_id IS 'The id in the system that the movie comes from, such as imdb:tt0111161; no two movies have the same. null: none.';

CREATE FUNCTION public.movie_matches(m public.movies, filter jsonb) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN ((((filter ->> 'title'::text) IS NULL) OR ((m).search @@ public.title_query((filter ->> 'title'::text)))) AND (((filter ->> 'genres'::text) IS NULL) OR ((m).search @@ public.genres_query(string_to_array((filter ->> 'genres'::text), ','::text)))) AND (((filter ->> 'genres_any'::text) IS NULL) OR ((m).search @@ public.genres_any_query(string_to_array((filter ->> 'genres_any'::text), ','::text)))) AND (((filter ->> 'year_from'::text) IS NULL) OR ((m).year >= ((filter ->> 'year_from'::text))::integer)) AND (((filter ->> 'year_to'::text) IS NULL) OR ((m).year <= ((filter ->> 'year_to'::text))::integer)) AND ((public.list_numbers(public.number_ranges((filter ->> 'years'::text))) IS NULL) OR ((m).year = ANY (public.list_numbers(public.number_ranges((filter ->> 'years'::text)))))) AND ((public.list_numbers(public.number_ranges((filter ->> 'years'::text))) IS NOT NULL) OR COALESCE((((m).year)::bigint <@ public.number_ranges((filter ->> 'years'::text))), true)) AND (((filter ->> 'runtime_from'::text) IS NULL) OR ((m).runtime >= ((filter ->> 'runtime_from'::text))::integer)) AND (((filter ->> 'runtime_to'::text) IS NULL) OR ((m).runtime <= ((filter ->> 'runtime_to'::text))::integer)) AND ((public.list_numbers(public.number_ranges((filter ->> 'runtimes'::text))) IS NULL) OR ((m).runtime = ANY (public.list_numbers(public.number_ranges((filter ->> 'runtimes'::text)))))) AND ((public.list_numbers(public.number_ranges((filter ->> 'runtimes'::text))) IS NOT NULL) OR COALESCE((((m).runtime)::bigint <@ public.number_ranges((filter ->> 'runtimes'::text))), true)) AND (((filter ->> 'created_at_from'::text) IS NULL) OR ((m).created_at >= public.zoned_time((filter ->> 'created_at_from'::text)))) AND (((filter ->> 'created_at_to'::text) IS NULL) OR ((m).created_at <= public.zoned_time((filter ->> 'created_at_to'::text)))) AND (((filter ->> 'updated_at_from'::text) IS NULL) OR ((m).updated_at >= public.zoned_time((filter ->> 'updated_at_from'::text)))) AND (((filter ->> 'updated_at_to'::text) IS NULL) OR ((m).updated_at <= public.zoned_time((filter ->> 'updated_at_to'::text)))) AND (((filter ->> 'external_id_prefix'::text) IS NULL) OR (((m).external_id COLLATE "C") ~~ like_escape((replace(replace(replace((filter ->> 'external_id_prefix'::text), '!'::text, '!!'::text), '%'::text, '!%'::text), '_'::text, '!_'::text) || '%'::text), '!'::text))));

COMMENT ON FUNCTION public.movie_matches(m public.movies, filter jsonb) IS 'Whether a list has the movie. `filter` has the filters that are set, like {"title": "amelie", "year_from": 1990}; {} matches every movie. The genres are separated by commas. The years are from year_from to year_to, and of these only `years`, if there are some; the same for runtimes. A time has a time zone.';

CREATE FUNCTION public.movie_matches(m public.movies, title text, genres text, genres_any text, year_from integer, year_to integer, years int8multirange, runtime_from integer, runtime_to integer, runtimes int8multirange, created_at_from timestamp with time zone, created_at_to timestamp with time zone, updated_at_from timestamp with time zone, updated_at_to timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
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

COMMENT ON FUNCTION public.movie_matches(m public.movies, title text, genres text, genres_any text, year_from integer, year_to integer, years int8multirange, runtime_from integer, runtime_to integer, runtimes int8multirange, created_at_from timestamp with time zone, created_at_to timestamp with time zone, updated_at_from timestamp with time zone, updated_at_to timestamp with time zone) IS 'Whether a list has the movie. A filter that is null matches every movie. The genres are separated by commas. The years are from year_from to year_to, and of these only `years`, if it is not null; the same for runtimes.';

CREATE FUNCTION public.movie_order(sort text, id bigint, title text, year integer, runtime integer, created_at timestamp with time zone, updated_at timestamp with time zone) RETURNS TABLE(title_up text, number_up integer, time_up timestamp with time zone, rank_up bigint, title_down text, number_down integer, time_down timestamp with time zone, rank_down bigint, id_down bigint)
    LANGUAGE sql STABLE ROWS 1 PARALLEL SAFE
    AS $$
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

COMMENT ON FUNCTION public.movie_order(sort text, id bigint, title text, year integer, runtime integer, created_at timestamp with time zone, updated_at timestamp with time zone) IS 'What a list is sorted by: each column in its direction, then the id. `sort` is as in the API: title, -year, relevance ... Which movies come after one is in movie_follows.';

CREATE FUNCTION public.movies_add_words() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
  words text[];
begin
  -- An import adds its words once, at its end.
  if current_setting('catalogue.adds_words_later', true) = 'on' then
    return null;
  end if;
  -- Without genres, which begin with a blank. As an array, so that one scan of the index finds all that are there.
  words := array(
    select n.word
    from (select distinct unnest(tsvector_to_array(m.search)) as word from new_movies as m) as n
    where n.word not like ' %'
  );
  insert into search_words (word)
  select n.word
  from (
    select unnest(words) collate "C" as word
    except
    select w.word from search_words as w where w.word = any (words)
  ) as n
  where is_plain_word(n.word);
  return null;
end
$$;

COMMENT ON FUNCTION public.movies_add_words() IS 'Adds the words of created and changed movies to search_words. An import sets catalogue.adds_words_later and adds its words once.';

CREATE FUNCTION public.movies_keep_version() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
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

COMMENT ON FUNCTION public.movies_keep_version() IS 'Raises version and updated_at if any column changes, and refuses a change of id.';

CREATE FUNCTION public.movies_limit_affected() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
declare
  max_affected text := current_setting('catalogue.max_affected', true);
  affected_rows bigint;
begin
  if max_affected is null or max_affected = '' or pg_trigger_depth() > 1 then
    return null;
  end if;
  select count(*) into affected_rows from affected;
  if affected_rows > max_affected::bigint then
    raise exception using
      errcode = 'cardinality_violation',
      message = format(
        '%s changed %s %s, but at most %s were requested: does the query lack a condition?',
        lower(tg_op), affected_rows, tg_table_name, max_affected
      );
  end if;
  return null;
end
$$;

COMMENT ON FUNCTION public.movies_limit_affected() IS 'Refuses a statement that changes more rows than catalogue.max_affected, which the service sets for each of its writes. Where it is not set, as in psql, nothing is limited. What a trigger changes does not count; what a cascade within the table deletes does.';

CREATE FUNCTION public.movies_record_created() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $$
#variable_conflict use_variable
declare
  clients constant jsonb := nullif(current_setting('catalogue.clients', true), '')::jsonb;
  is_nested constant boolean := pg_trigger_depth() > 1;
begin
  insert into movie_changes (transaction, movie_id, version, kind, client_id, login)
  select
    pg_current_xact_id(), n.id, n.version, 'created',
    case
      when clients is null then null
      when is_nested or not clients ? n.id::text then only_client(clients)
      else (clients ->> n.id::text)::bigint
    end,
    case when clients is null then session_user end
  from new_movies as n;
  if current_setting('catalogue.nested_since', true) <> '' then
    perform movies_record_nested(array_agg(n.id), array_agg(n.version)) from new_movies as n;
  end if;
  return null;
end
$$;

COMMENT ON FUNCTION public.movies_record_created() IS 'Writes a row of movie_changes for each movie that a statement has created.';

CREATE FUNCTION public.movies_record_deleted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $$
#variable_conflict use_variable
declare
  clients constant jsonb := nullif(current_setting('catalogue.clients', true), '')::jsonb;
  is_nested constant boolean := pg_trigger_depth() > 1;
begin
  if pg_trigger_depth() > 1 and coalesce(current_setting('catalogue.nested_since', true), '') = '' then
    perform set_config('catalogue.nested_since', nextval('movie_changes_id_seq')::text, true);
  end if;
  insert into movie_changes (transaction, movie_id, version, kind, movie, client_id, login)
  select
    pg_current_xact_id(), o.id, o.version, 'deleted', to_jsonb(o.*) - 'search',
    case
      when clients is null then null
      when is_nested or not clients ? o.id::text then only_client(clients)
      else (clients ->> o.id::text)::bigint
    end,
    case when clients is null then session_user end
  from old_movies as o;
  if not is_nested then
    perform set_config('catalogue.nested_since', '', true);
  end if;
  return null;
end
$$;

COMMENT ON FUNCTION public.movies_record_deleted() IS 'Writes a row of movie_changes for each movie that a statement has deleted.';

CREATE FUNCTION public.movies_record_nested(ids bigint[], versions integer[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'public', 'pg_temp'
    AS $$
begin
  with later as (
    delete from movie_changes as c
    using unnest(ids, versions) as n (id, version)
    where c.transaction = pg_current_xact_id()
      and c.id > current_setting('catalogue.nested_since')::bigint
      and c.movie_id = n.id
      and (c.version > n.version or (c.version = n.version and c.kind = 'deleted'))
      and (c.kind <> 'deleted' or not exists (select from movies as m where m.id = n.id))
    returning c.*
  )
  insert into movie_changes (transaction, movie_id, version, kind, movie, previous, client_id, login)
  select l.transaction, l.movie_id, l.version, l.kind, l.movie, l.previous, l.client_id, l.login
  from later as l
  order by l.id;
  if pg_trigger_depth() = 1 then
    perform set_config('catalogue.nested_since', '', true);
  end if;
end
$$;

COMMENT ON FUNCTION public.movies_record_nested(ids bigint[], versions integer[]) IS 'For triggers: records what other triggers have changed in these movies within their statement again, behind it.';

CREATE FUNCTION public.movies_record_truncated() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    AS $$
#variable_conflict use_variable
declare
  clients constant jsonb := nullif(current_setting('catalogue.clients', true), '')::jsonb;
begin
  insert into movie_changes (transaction, movie_id, version, kind, movie, client_id, login)
  select
    pg_current_xact_id(), m.id, m.version, 'deleted', to_jsonb(m.*) - 'search',
    only_client(clients), case when clients is null then session_user end
  from movies as m;
  -- Other levels do not see movies that were created after their snapshot, and truncate these, too.
  if current_setting('transaction_isolation') <> 'read committed' then
    update movie_feed set id = gen_random_uuid();
  end if;
  return null;
end
$$;

COMMENT ON FUNCTION public.movies_record_truncated() IS 'Writes a deletion of each movie before `truncate`.';

CREATE FUNCTION public.movies_record_updated() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'public', 'pg_temp'
    SET enable_nestloop TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_variable
declare
  clients constant jsonb := nullif(current_setting('catalogue.clients', true), '')::jsonb;
  is_nested constant boolean := pg_trigger_depth() > 1;
begin
  if pg_trigger_depth() > 1 and coalesce(current_setting('catalogue.nested_since', true), '') = '' then
    perform set_config('catalogue.nested_since', nextval('movie_changes_id_seq')::text, true);
  end if;
  -- A statement that changes nothing keeps the version. Nobody can change an id.
  insert into movie_changes (transaction, movie_id, version, kind, previous, client_id, login)
  select
    pg_current_xact_id(), n.id, n.version, 'updated', p.previous,
    case
      when clients is null then null
      when is_nested or not clients ? n.id::text then only_client(clients)
      else (clients ->> n.id::text)::bigint
    end,
    case when clients is null then session_user end
  from new_movies as n
  join old_movies as o on o.id = n.id
  cross join lateral (select to_jsonb(n.*) as movie) as now_is
  cross join lateral (
    select coalesce(jsonb_object_agg(was.name, was.value), '{}') as previous
    from jsonb_each(to_jsonb(o.*) - '{search,version,updated_at}'::text[]) as was (name, value)
    where was.value is distinct from now_is.movie -> was.name
  ) as p
  where n.version <> o.version;
  if current_setting('catalogue.nested_since', true) <> '' then
    perform movies_record_nested(array_agg(n.id), array_agg(n.version)) from new_movies as n;
  end if;
  return null;
end
$$;

COMMENT ON FUNCTION public.movies_record_updated() IS 'Writes a row of movie_changes for each movie that a statement has given a new version.';

CREATE FUNCTION public.number_spellings(word text, is_first boolean) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $_$
declare
  spellings constant text[] := string_to_array(
    '1 one i 2 two ii 3 three iii 4 four iv 5 five v 6 six vi 7 seven vii 8 eight viii 9 nine ix 10 ten x 11 eleven xi '
    '12 twelve xii 13 thirteen xiii 14 fourteen xiv 15 fifteen xv 16 sixteen xvi 17 seventeen xvii 18 eighteen xviii '
    '19 nineteen xix 20 twenty xx',
    ' '
  );
  place constant integer := array_position(spellings, $1);
  digits constant integer := place - (place - 1) % 3;
begin
  return case
    when not is_first or length(spellings[digits + 2]) > 1 then spellings[digits:digits + 2]
    when place < digits + 2 then spellings[digits:digits + 1]
  end;
end
$_$;

COMMENT ON FUNCTION public.number_spellings(word text, is_first boolean) IS 'The spellings of a number from 1 to 20, or null. A first I, V or X is a letter: `rocky v`, not `v for vendetta`.';

CREATE FUNCTION public.only_client(clients jsonb) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
select min(c.id::bigint) from jsonb_each_text(clients) as c (movie, id) having count(distinct coalesce(c.id, '')) = 1
$$;

COMMENT ON FUNCTION public.only_client(clients jsonb) IS 'For triggers: the client of all movies in catalogue.clients; null if there are several, or a request without a token.';

CREATE FUNCTION public.quote_lexeme(text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ((''''::text || replace(replace($1, '\'::text, '\\'::text), ''''::text, ''''''::text)) || ''''::text);

COMMENT ON FUNCTION public.quote_lexeme(text) IS 'A word as a tsquery has it.';

CREATE FUNCTION public.restore_movies(restores jsonb, all_or_none boolean DEFAULT false) RETURNS TABLE(number bigint, outcome text, owner bigint, movie public.movies)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_custom_plan'
    SET jit TO 'off'
    SET work_mem TO '64kB'
    AS $_$
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
$_$;

COMMENT ON FUNCTION public.restore_movies(restores jsonb, all_or_none boolean) IS 'Gives each movie the fields that it had in a version, as a new version: [{"id": 7, "version": 3}]. Without a version, a deleted movie comes back as it was; with `before`, the id of a change, the movie is as it was before that. Returns for each id (`number`) its outcome, which restore_movies in queries/movies.sql explains, and the movie. A movie that the table refuses by now fails all.';

CREATE FUNCTION public.search_rank(title text, year bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((length(title) * '10000000000'::bigint) - year);

COMMENT ON FUNCTION public.search_rank(title text, year bigint) IS 'Sorts movies by relevance, ascending: the shortest title (in characters) first, then the newer year. One character counts more than the distance of any two years. The service computes the same value for cursors.';

CREATE FUNCTION public.switch_movie_feed(switch_on boolean) RETURNS boolean
    LANGUAGE plpgsql STRICT
    AS $$
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

COMMENT ON FUNCTION public.switch_movie_feed(switch_on boolean) IS 'Switches the feed on or off, and returns whether it was the other way before; `migrate` calls it, as [changes] keep_days says. Off, it costs nothing. On again, it begins anew: all clients start again.';

CREATE FUNCTION public.undo_changes(by_transaction xid8 DEFAULT NULL::xid8, by_client text DEFAULT NULL::text, since timestamp with time zone DEFAULT '-infinity'::timestamp with time zone, until timestamp with time zone DEFAULT 'infinity'::timestamp with time zone) RETURNS TABLE(movie_id bigint, outcome text)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_custom_plan'
    SET jit TO 'off'
    SET work_mem TO '64kB'
    AS $$
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

COMMENT ON FUNCTION public.undo_changes(by_transaction xid8, by_client text, since timestamp with time zone, until timestamp with time zone) IS 'Undoes the changes of a transaction, or of a client or login (its name), or those of their changes that were made between two times, of movies that nobody else has changed since. Movies that they created are deleted, those that they deleted come back, and others get the fields that they had before. Returns for each movie what was done, or why it was left. It does not wait for locked rows.';

CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);

COMMENT ON TABLE public.alembic_version IS 'The newest migration, for alembic, which runs them. It decides nothing: schema_migrations does.';

CREATE TABLE public.clients (
    id bigint NOT NULL,
    name text NOT NULL,
    token_hash text NOT NULL COLLATE pg_catalog."C",
    scopes text[] NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_on date,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    previous_token_hash text COLLATE pg_catalog."C",
    previous_expires_at timestamp with time zone,
    CONSTRAINT clients_name_is_printable CHECK (((name ~ '^[^[:cntrl:]]{1,100}$'::text) AND (name ~ '^[^[:space:]](.*[^[:space:]])?$'::text))),
    CONSTRAINT clients_previous_token_expires CHECK (((previous_token_hash IS NULL) = (previous_expires_at IS NULL))),
    CONSTRAINT clients_previous_token_hash_is_sha256 CHECK ((previous_token_hash ~ '^[0-9a-f]{64}$'::text)),
    CONSTRAINT clients_scopes_are_known CHECK (((scopes <@ '{read,write,admin}'::text[]) AND (cardinality(scopes) > 0) AND (array_ndims(scopes) = 1))),
    CONSTRAINT clients_token_hash_is_sha256 CHECK ((token_hash ~ '^[0-9a-f]{64}$'::text))
);

COMMENT ON TABLE public.clients IS 'The clients that use the API with a token (docs/dbas.md).';

COMMENT ON COLUMN public.clients.id IS 'A part of the token.';

COMMENT ON COLUMN public.clients.name IS 'For people; it may be changed at any time.';

COMMENT ON COLUMN public.clients.token_hash IS 'SHA-256 of the whole token, in hex.';

COMMENT ON COLUMN public.clients.scopes IS 'read; write, which includes read; admin, which includes write (no route of /v1 needs it).';

COMMENT ON COLUMN public.clients.expires_at IS 'From then on its tokens are refused; null: never.';

COMMENT ON COLUMN public.clients.revoked_at IS 'From then on its tokens are refused; null: not revoked.';

COMMENT ON COLUMN public.clients.last_used_on IS 'A day in UTC; null: never.';

COMMENT ON COLUMN public.clients.created_at IS 'When the client was added.';

COMMENT ON COLUMN public.clients.previous_token_hash IS 'Of the token before the last rotation, which works until previous_expires_at.';

COMMENT ON COLUMN public.clients.previous_expires_at IS 'Until then the token before the last rotation works; null: there is none.';

ALTER TABLE public.clients ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.clients_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.idempotency_answers (
    key text NOT NULL COLLATE pg_catalog."C",
    id bigint NOT NULL,
    title text NOT NULL,
    year integer NOT NULL,
    runtime integer NOT NULL,
    genres text[] NOT NULL,
    version integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

COMMENT ON TABLE public.idempotency_answers IS 'Not used: the release before reads it, and finds it empty.';

CREATE TABLE public.idempotency_keys (
    key text NOT NULL COLLATE pg_catalog."C",
    fingerprint text NOT NULL,
    expires_at timestamp with time zone DEFAULT (now() + '24:00:00'::interval) NOT NULL,
    movie_id bigint,
    created_at timestamp with time zone,
    response jsonb
)
WITH (autovacuum_vacuum_scale_factor='0.02');

COMMENT ON TABLE public.idempotency_keys IS 'The Idempotency-Key of each create that had one, with its response, for 24 hours.';

COMMENT ON COLUMN public.idempotency_keys.key IS 'As it was sent; of a client with a token: its id, a tab, and the key. In front of the key of a batch are "batch" and a tab; behind that of a movie of a lenient batch are a tab and its place.';

COMMENT ON COLUMN public.idempotency_keys.fingerprint IS 'SHA-256 of the fields that were sent, in hex.';

COMMENT ON COLUMN public.idempotency_keys.expires_at IS 'From then on the key counts as unused; its default says how long keys are kept.';

COMMENT ON COLUMN public.idempotency_keys.movie_id IS 'Not used: the release before reads it.';

COMMENT ON COLUMN public.idempotency_keys.created_at IS 'Not used: the release before reads it.';

COMMENT ON COLUMN public.idempotency_keys.response IS 'The movie, or the array of movies of a batch, as created; they may have changed since, or be gone.';

CREATE TABLE public.movie_changes (
    transaction xid8 NOT NULL,
    id bigint NOT NULL,
    movie_id bigint NOT NULL,
    changed_at timestamp with time zone DEFAULT now() NOT NULL,
    version integer NOT NULL,
    kind text NOT NULL,
    movie jsonb,
    previous jsonb,
    client_id bigint,
    login text,
    CONSTRAINT movie_changes_kind_is_known CHECK ((kind = ANY (ARRAY['created'::text, 'updated'::text, 'deleted'::text])))
);

COMMENT ON TABLE public.movie_changes IS 'The changes of movies, for GET /v1/changes; triggers of movies write them, and the service clears old ones.';

COMMENT ON COLUMN public.movie_changes.transaction IS 'The one that made the change; transactions are sent in this order.';

COMMENT ON COLUMN public.movie_changes.id IS 'The order of the changes of a transaction.';

COMMENT ON COLUMN public.movie_changes.movie_id IS 'Of the movie, which may be gone.';

COMMENT ON COLUMN public.movie_changes.changed_at IS 'When the transaction began.';

COMMENT ON COLUMN public.movie_changes.version IS 'Of the movie after the change; of a deleted movie, its last one.';

COMMENT ON COLUMN public.movie_changes.kind IS 'created, updated or deleted.';

COMMENT ON COLUMN public.movie_changes.movie IS 'Of a deletion: the movie as it was, for restore_movies.';

COMMENT ON COLUMN public.movie_changes.previous IS 'Of an update: the fields that it changed, as they were; {} if nothing that is kept differs, null if that is not known.';

COMMENT ON COLUMN public.movie_changes.client_id IS 'Of the client (clients) whose token the request had.';

COMMENT ON COLUMN public.movie_changes.login IS 'The login (session_user), if the change was not made by a request to the service.';

ALTER TABLE public.movie_changes ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.movie_changes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.movie_feed (
    is_single boolean DEFAULT true NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    is_on boolean DEFAULT true NOT NULL,
    cleared_to xid8 DEFAULT '0'::xid8 NOT NULL,
    CONSTRAINT movie_feed_has_one_row CHECK (is_single)
);

COMMENT ON TABLE public.movie_feed IS 'The state of movie_changes, in one row.';

COMMENT ON COLUMN public.movie_feed.is_single IS 'Always true, so that there is no second row.';

COMMENT ON COLUMN public.movie_feed.id IS 'Cursors belong to it: a new id makes all clients start again.';

COMMENT ON COLUMN public.movie_feed.is_on IS 'False: triggers write no changes (switch_movie_feed).';

COMMENT ON COLUMN public.movie_feed.cleared_to IS 'Changes of this transaction and of earlier ones may have been cleared.';

ALTER TABLE public.movies ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.movies_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.schema_migrations (
    version text NOT NULL,
    applied_at timestamp with time zone DEFAULT now(),
    checksum text
);

COMMENT ON TABLE public.schema_migrations IS 'The migrations that were applied, also those of release 1.1.0, which the first files sum up.';

CREATE TABLE public.search_words (
    word text NOT NULL COLLATE pg_catalog."C"
);

COMMENT ON TABLE public.search_words IS 'The words that titles have or had, for suggestions. Triggers of movies and imports add them; a word without movies does no harm. docs/dbas.md says how to collect them anew.';

COMMENT ON COLUMN public.search_words.word IS 'As the column `search` of movies has it.';

ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);

ALTER TABLE ONLY public.clients
    ADD CONSTRAINT clients_name_is_unique UNIQUE (name);

ALTER TABLE ONLY public.clients
    ADD CONSTRAINT clients_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.idempotency_answers
    ADD CONSTRAINT idempotency_answers_pkey PRIMARY KEY (key);

ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key);

ALTER TABLE ONLY public.movie_changes
    ADD CONSTRAINT movie_changes_pkey PRIMARY KEY (transaction, id);

ALTER TABLE ONLY public.movie_feed
    ADD CONSTRAINT movie_feed_pkey PRIMARY KEY (is_single);

ALTER TABLE ONLY public.movies
    ADD CONSTRAINT movies_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.schema_migrations
    ADD CONSTRAINT schema_migrations_pkey PRIMARY KEY (version);

CREATE INDEX idempotency_keys_expires_at ON public.idempotency_keys USING btree (expires_at);

COMMENT ON INDEX public.idempotency_keys_expires_at IS 'The service clears keys that have expired.';

CREATE INDEX movie_changes_of_movie ON public.movie_changes USING btree (movie_id, id);

COMMENT ON INDEX public.movie_changes_of_movie IS 'The changes of a movie, in their order.';

CREATE INDEX movies_created_at ON public.movies USING btree (created_at, id);

COMMENT ON INDEX public.movies_created_at IS 'Order and filter by created_at of lists.';

CREATE INDEX movies_external_id_prefix ON public.movies USING btree (external_id COLLATE "C") WHERE (external_id IS NOT NULL);

COMMENT ON INDEX public.movies_external_id_prefix IS 'The filter external_id_prefix of lists.';

CREATE UNIQUE INDEX movies_external_id_unique ON public.movies USING btree (external_id) WHERE (external_id IS NOT NULL);

CREATE INDEX movies_rank ON public.movies USING btree (public.search_rank(title, (year)::bigint), id);

COMMENT ON INDEX public.movies_rank IS 'Order by relevance of lists whose search matches many movies.';

CREATE INDEX movies_runtime ON public.movies USING btree (runtime, id, year);

COMMENT ON INDEX public.movies_runtime IS 'Order and filter by runtime of lists; also counts movies of some runtimes and years.';

CREATE INDEX movies_search ON public.movies USING gin (search);

COMMENT ON INDEX public.movies_search IS 'Filters title, genres and genres_any of lists, and suggestions.';

CREATE INDEX movies_title ON public.movies USING btree (title, id);

COMMENT ON INDEX public.movies_title IS 'Order by title of lists.';

CREATE INDEX movies_updated_at ON public.movies USING btree (updated_at, id);

COMMENT ON INDEX public.movies_updated_at IS 'Order and filter by updated_at of lists.';

CREATE INDEX movies_year ON public.movies USING btree (year, id, runtime);

COMMENT ON INDEX public.movies_year IS 'Order and filter by year of lists; also counts movies of some years and runtimes.';

CREATE INDEX search_words_end ON public.search_words USING btree (length(word), reverse(word));

COMMENT ON INDEX public.search_words_end IS 'Corrections of a word whose last half is right.';

CREATE INDEX search_words_start ON public.search_words USING btree (length(word), word);

COMMENT ON INDEX public.search_words_start IS 'Corrections of a word whose first half is right.';

CREATE INDEX search_words_word ON public.search_words USING btree (word);

COMMENT ON INDEX public.search_words_word IS 'Whether a word is there. A word may be there twice.';

CREATE TRIGGER movies_add_created_words AFTER INSERT ON public.movies REFERENCING NEW TABLE AS new_movies FOR EACH STATEMENT EXECUTE FUNCTION public.movies_add_words();

COMMENT ON TRIGGER movies_add_created_words ON public.movies IS 'Keeps search_words, for suggestions.';

CREATE TRIGGER movies_add_updated_words AFTER UPDATE ON public.movies REFERENCING NEW TABLE AS new_movies FOR EACH STATEMENT EXECUTE FUNCTION public.movies_add_words();

COMMENT ON TRIGGER movies_add_updated_words ON public.movies IS 'Keeps search_words, for suggestions.';

CREATE TRIGGER movies_limit_deleted AFTER DELETE ON public.movies REFERENCING OLD TABLE AS affected FOR EACH STATEMENT EXECUTE FUNCTION public.movies_limit_affected();

COMMENT ON TRIGGER movies_limit_deleted ON public.movies IS 'Refuses a query that deletes more movies than were requested.';

CREATE TRIGGER movies_limit_inserted AFTER INSERT ON public.movies REFERENCING NEW TABLE AS affected FOR EACH STATEMENT EXECUTE FUNCTION public.movies_limit_affected();

COMMENT ON TRIGGER movies_limit_inserted ON public.movies IS 'Refuses a query that creates more movies than were requested.';

CREATE TRIGGER movies_limit_updated AFTER UPDATE ON public.movies REFERENCING OLD TABLE AS affected FOR EACH STATEMENT EXECUTE FUNCTION public.movies_limit_affected();

COMMENT ON TRIGGER movies_limit_updated ON public.movies IS 'Refuses a query that changes more movies than were requested.';

CREATE TRIGGER movies_record_created AFTER INSERT ON public.movies REFERENCING NEW TABLE AS new_movies FOR EACH STATEMENT EXECUTE FUNCTION public.movies_record_created();

COMMENT ON TRIGGER movies_record_created ON public.movies IS 'Writes the feed of changes; switch_movie_feed disables it.';

CREATE TRIGGER movies_record_deleted AFTER DELETE ON public.movies REFERENCING OLD TABLE AS old_movies FOR EACH STATEMENT EXECUTE FUNCTION public.movies_record_deleted();

COMMENT ON TRIGGER movies_record_deleted ON public.movies IS 'Writes the feed of changes; switch_movie_feed disables it.';

CREATE TRIGGER movies_record_truncated BEFORE TRUNCATE ON public.movies FOR EACH STATEMENT EXECUTE FUNCTION public.movies_record_truncated();

COMMENT ON TRIGGER movies_record_truncated ON public.movies IS 'Writes the feed of changes; switch_movie_feed disables it.';

CREATE TRIGGER movies_record_updated AFTER UPDATE ON public.movies REFERENCING OLD TABLE AS old_movies NEW TABLE AS new_movies FOR EACH STATEMENT EXECUTE FUNCTION public.movies_record_updated();

COMMENT ON TRIGGER movies_record_updated ON public.movies IS 'Writes the feed of changes; switch_movie_feed disables it.';

CREATE TRIGGER zzz_movies_keep_version BEFORE UPDATE ON public.movies FOR EACH ROW EXECUTE FUNCTION public.movies_keep_version();

COMMENT ON TRIGGER zzz_movies_keep_version ON public.movies IS 'Keeps version, updated_at and id. Triggers of one kind run in the order of their names: this one must be the last, otherwise a change by a trigger behind it has no version, no ETag and no place in the feed.';

ALTER TABLE ONLY public.idempotency_answers
    ADD CONSTRAINT idempotency_answers_key_fkey FOREIGN KEY (key) REFERENCES public.idempotency_keys(key) ON DELETE CASCADE;
