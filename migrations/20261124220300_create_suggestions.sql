-- replaces: 20260105090000..20261124210001 (release 1.1.0)
--
-- Suggestions for searches that find nothing (queries/listing.sql): the words of titles, and the movies that come
-- closest to a search. docs/decisions/0017-suggest-searches.md has the reasons and figures.

-- migrate:up
-- The indexes are not unique, so that nobody waits for a transaction that adds the same word, such as an import.
create table search_words (word text collate "C" not null);

comment on table search_words is
  'The words that titles have or had, for suggestions. Triggers of movies and imports add them; a word without movies does'
  ' no harm. docs/dbas.md says how to collect them anew.';
comment on column search_words.word is 'As the column `search` of movies has it.';

create index search_words_word on search_words (word);
create index search_words_start on search_words (length(word), word);
create index search_words_end on search_words (length(word), reverse(word));

comment on index search_words_word is 'Whether a word is there. A word may be there twice.';
comment on index search_words_start is 'Corrections of a word whose first half is right.';
comment on index search_words_end is 'Corrections of a word whose last half is right.';

create function is_plain_word(text) returns boolean
  language sql immutable strict parallel safe
return length($1) <= 30 and $1 ~ '^[a-z0-9\u00df-\u0dff\u10a0-\u11ff\u1e00-\u1fff]+$';

comment on function is_plain_word(text) is
  'Whether a misspelt word may be corrected to it: it has at most 30 characters, all of alphabets or digits. A Korean'
  ' syllable is folded to its letters. The other words are signs, pairs of scripts without blanks, and genres.';

create function add_search_words(movies text default 'select search from movies') returns bigint
  language plpgsql as $$
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
$$;

comment on function add_search_words(text) is
  'Adds the words that search_words lacks, and returns how many. `movies`: a query of the column `search`.';

-- With the rights of the owner, so that whoever may change movies needs no more rights. pg_temp comes last: otherwise a
-- temporary table of the writer would be found first
-- (https://www.postgresql.org/docs/current/sql-createfunction.html#SQL-CREATEFUNCTION-SECURITY).
select set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

create function movies_add_words() returns trigger language plpgsql
  security definer set search_path from current
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
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

comment on function movies_add_words() is
  'Adds the words of created and changed movies to search_words. An import sets catalogue.adds_words_later and adds its'
  ' words once.';

create trigger movies_add_created_words after insert on movies
  referencing new table as new_movies
  for each statement execute function movies_add_words();
create trigger movies_add_updated_words after update on movies
  referencing new table as new_movies
  for each statement execute function movies_add_words();

comment on trigger movies_add_created_words on movies is 'Keeps search_words, for suggestions.';
comment on trigger movies_add_updated_words on movies is 'Keeps search_words, for suggestions.';

create function correct_word(word text, is_prefix boolean) returns text[]
  language plpgsql stable parallel safe
  set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $$
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
$$;

comment on function correct_word(text, boolean) is
  'Up to 20 words of titles that differ from this one by one letter (missing, added, wrong, or changed places with the next'
  ' one), the most similar first; with is_prefix, also longer ones that begin with such a word. The mistake is in one half'
  ' of the word, so the other half finds them along an index.';

-- The work is bounded by the number of movies that have the words, as the statistics of `analyze` know it. At most four
-- words, the rarest, are conditions; the others only count. All spellings of these are together in fewer than 40,000
-- movies, or those of a single one in fewer than 100,000.
create function closest_movies(
  search text, genres text default null, genres_any text default null,
  year_from integer default null, year_to integer default null, years int8multirange default null,
  runtime_from integer default null, runtime_to integer default null, runtimes int8multirange default null,
  created_at_from timestamptz default null, created_at_to timestamptz default null,
  updated_at_from timestamptz default null, updated_at_to timestamptz default null
) returns table (id bigint, likeness double precision)
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
$$;

comment on function closest_movies is
  'The movies that come closest to a search, and how close: from 0.25 to 1, which has all of its words. A word may also be a number in another'
  ' spelling, the start of a word if it is the last one or has a `*`, a corrected word, or two words that were written as'
  ' one; two neighbours may be one word. Words may be missing, and the rarer one weighs more. A year only counts beside'
  ' another word. The other parameters are filters, as of movie_matches.';

-- migrate:down
do $$ begin raise exception 'cannot be reverted: the movies, keys and clients would be lost'; end $$;
