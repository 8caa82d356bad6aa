-- What GET /v1/movies searches: the words of a title without case and accents, and the genres, as
-- one tsvector, which PostgreSQL keeps by itself for every writer.
--
--   select title from movies where search @@ title_query('amelie') and search @@ genres_query('{drama}');
--
-- Not to_tsvector: its parser takes "Face/Off" for a file and "S.W.A.T." for a host, and a search
-- for one of their words would miss them. A word, like a genre, is known by its first 100
-- characters: an index entry has a limit, what clients send has not.
--
-- The column is computed for all movies at once (some 12 s a million), while nobody else can use
-- the table.

-- migrate:up
-- Lower case, without combining marks; anything that is no letter or digit is a blank, but for `*`.
-- Ranges by code point, so that it does not depend on the locale of the database.
create function fold_text(text) returns text
  language sql immutable strict parallel safe
return regexp_replace(
  regexp_replace(
    regexp_replace(
      lower(normalize($1, nfkd)),
      '[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+', '', 'g'
    ),
    '[\u0001-\u0029\u002b-\u002f:-@\[-`{-\u00bf\u00d7\u00f7\u2000-\u206f\u20a0-\u20cf\u2190-\u2bff'
    '\u2e00-\u2e7f\u3000-\u3004\u3008-\u3020\u3030\u30fb\ufe10-\ufe6f]+', ' ', 'g'
  ),
  '([^ *]{100})[^ *]+', '\1', 'g'
);

-- What a movie is found by. No word has a blank in it, so no genre can be taken for one.
create function movie_search(title text, genres text[]) returns tsvector
  language sql immutable strict parallel safe
return array_to_tsvector(
  array_remove(string_to_array(replace(fold_text(title), '*', ' '), ' '), '')
  || (
    select array_agg('genre ' || left(genre, 100))
    from unnest(genres) as genre
    where genre is not null
  )
);

-- All the words, in any order; `cas*` is any word that begins so. Null, which finds nothing, if
-- there is no word in it.
create function title_query(text) returns tsquery
  language sql immutable strict parallel safe
return (
  select string_agg(replace(word, '*', ':*'), ' & ')::tsquery
  from unnest(string_to_array(replace(fold_text($1), '*', '* '), ' ')) as word
  where word not in ('', '*')
);

-- All the genres.
create function genres_query(text[]) returns tsquery
  language sql immutable strict parallel safe
return (
  select string_agg(
    '''genre ' || replace(replace(left(genre, 100), '\', '\\'), '''', '''''') || '''', ' & '
  )::tsquery
  from unnest($1) as genre
);

alter table movies
  add column search tsvector not null
    generated always as (movie_search(title, genres)) stored;

comment on column movies.search is 'the words of the title and the genres; see title_query and genres_query';

-- migrate:down
alter table movies drop column search;
drop function genres_query(text[]);
drop function title_query(text);
drop function movie_search(text, text[]);
drop function fold_text(text);
