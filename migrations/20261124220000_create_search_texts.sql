-- replaces: 20260105090000..20261124210001 (release 1.1.0)
--
-- How titles, genres and searches become words. The column `search` of movies has the words of a movie; title_query and
-- genres_query make conditions on it. docs/decisions/0013-search-with-a-generated-column.md has the reasons and figures.
--
-- Ranges of characters are by code point, so that nothing depends on the locale of the database.

-- migrate:up
create function fold_letters(text) returns text
  language plpgsql immutable strict parallel safe as $$
declare
  folded text;
begin
  -- Not I by `lower`, which makes it a dotless i in a Turkish locale.
  if octet_length($1) = length($1) then
    return lower(replace($1, 'I', 'i'));
  end if;
  folded := regexp_replace($1, '([\u00bc-\u00be\u2150-\u215e])', ' \1', 'g'); -- 9½ is 9 1/2
  folded := lower(replace(normalize(folded, nfkd), 'I', 'i'));
  folded := regexp_replace(
    folded,
    '[\u00ad\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640'
    '\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u1ab0-\u1aff\u1dc0-\u1dff\u200b-\u200f'
    '\u202a-\u202e\u2060-\u2064\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\ufeff]+',
    '', 'g'
  );
  -- Of Arabic: alif wasla, ta marbuta, alif maqsura and Persian yeh, Persian kaf.
  folded := translate(
    folded,
    E'łŁøØđĐðÐħĦıςþÞæÆœŒẞ\u0671\u0629\u0649\u06cc\u06a9',
    E'llooddddhhiσþþææœœß\u0627\u0647\u064a\u064a\u0643'
  );
  folded := replace(replace(replace(replace(folded, 'þ', 'th'), 'æ', 'ae'), 'œ', 'oe'), 'ß', 'ss');
  return case when btrim(folded) = '' then $1 else folded end; -- a title of marks alone
end
$$;

comment on function fold_letters(text) is
  'The text in small letters without accents and other marks. Only `lower` depends on the locale: in the locale C of'
  ' libc, it knows a to z alone.';

create function mark_signs(text) returns text
  language plpgsql immutable strict parallel safe as $$
declare
  -- Letters of scripts without blanks.
  run constant text := '\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff'
    '\u3400-\u9fff\U00020000-\U0003ffff';
  marked text;
begin
  if octet_length($1) = length($1) then
    marked := regexp_replace($1, '[\u0001-\u001f!-)+-/:-@\[-`{-\u007f]', '-', 'g');
  else
    marked := regexp_replace(
      $1,
      '[\u0001-\u001f!-)+-/:-@\[-`{-\u00bf\u00d7\u00f7\u02b9-\u02df\u05be\u05c0\u05c3\u05f3\u05f4\u060c\u061b\u061f'
      '\u066a-\u066d\u06d4\u1680\u2000-\u206f\u20a0-\u20cf\u2190-\u2bff\u2e00-\u2e7f\u3000-\u3004\u3008-\u3020\u3030'
      '\u30fb\ufe10-\ufe6f]',
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
    return translate($1, E'*+- \t\n\r', '＊＋－');
  end if;
  return marked;
end
$$;

comment on function mark_signs(text) is
  'Folded text with `-` for each sign but `*`. In scripts without blanks (Thai, Lao, Burmese, Khmer, Kana, Han), each pair'
  ' of neighbouring letters is a word, so that a title is found by any part: 千と千尋 becomes 千と と千 千尋 尋+. The last'
  ' letter is for searches of one letter, which become 尋*.';

create function title_entries(text) returns text[]
  language plpgsql immutable strict parallel safe as $$
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
$$;

comment on function title_entries(text) is
  'The words of a title whose signs are marked: the parts between the signs, and what they make together. A word is cut'
  ' after 100 letters, here and in a search: an entry of the index has a limit.';

create function genre_entry(text) returns text
  language sql immutable strict parallel safe
return ' ' || fold_letters(btrim(left($1, 100), E' \t\n\r\u00a0\u3000'));

comment on function genre_entry(text) is
  'A genre as the column `search` of movies has it. It begins with a blank, as no word of a title does.';

create function movie_search(title text, genres text[]) returns tsvector
  language sql immutable parallel safe
return array_to_tsvector(
  title_entries(mark_signs(fold_letters(left(title, 500))))
  || case when title like '%&%' then array['and'] end
  || array_remove(
    array[
      genre_entry(genres[1]), genre_entry(genres[2]), genre_entry(genres[3]), genre_entry(genres[4]),
      genre_entry(genres[5])
    ],
    null
  )
);

comment on function movie_search(text, text[]) is
  'What a movie is found by: the column `search` of movies. The rules of movies are checked later, so there may be text'
  ' that they refuse: it is cut.';

create function quote_lexeme(text) returns text
  language sql immutable strict parallel safe
return '''' || replace(replace($1, '\', '\\'), '''', '''''') || '''';

comment on function quote_lexeme(text) is 'A word as a tsquery has it.';

create function number_spellings(word text, is_first boolean) returns text[]
  language plpgsql immutable parallel safe as $$
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
$$;

comment on function number_spellings(text, boolean) is
  'The spellings of a number from 1 to 20, or null. A first I, V or X is a letter: `rocky v`, not `v for vendetta`.';

create function title_query(text) returns tsquery
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
    ) || case when count(*) over () > 1 then number_spellings(word, row_number() over neighbours = 1) end as spellings
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

comment on function title_query(text) is
  'The filter `title` of lists: all the words, in any order; `cas*` is any word that begins so. A word is also found'
  ' together with a neighbour (`spider man` finds Spiderman), and words that signs join as one (`s.w.a.t.` finds SWAT). Of'
  ' a longer search, the first ten words count. Null, which finds nothing, if there is no word in it. A number from 1 to 20'
  ' is found in every spelling, unless it is the only word: `seven` would list 7:19 before Seven.';

create function genres_query(text[]) returns tsquery
  language plpgsql immutable strict parallel safe as $$
begin
return (select string_agg(quote_lexeme(genre_entry(genre)), ' & ')::tsquery from unnest($1) as genre);
end
$$;

comment on function genres_query(text[]) is
  'The filter `genres` of lists: all of them, regardless of case, accents and surrounding blanks.';

create function genres_any_query(text[]) returns tsquery
  language plpgsql immutable strict parallel safe as $$
begin
return (select string_agg(quote_lexeme(genre_entry(genre)), ' | ')::tsquery from unnest($1) as genre);
end
$$;

comment on function genres_any_query(text[]) is 'The filter `genres_any` of lists: at least one of them.';

create function search_rank(title text, year bigint) returns bigint
  language sql immutable parallel safe
return length($1) * 10000000000 - $2;

comment on function search_rank(text, bigint) is
  'Sorts movies by relevance, ascending: the shortest title (in characters) first, then the newer year. One character'
  ' counts more than the distance of any two years. The service computes the same value for cursors.';

-- migrate:down
do $$ begin raise exception 'cannot be reverted: the movies, keys and clients would be lost'; end $$;
