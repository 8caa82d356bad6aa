-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- Defines once what a word of a title is. A character is one of these:
--
-- - A letter or a digit. The digits of all scripts are 0 to 9.
-- - A sign or a blank, which ends a word: punctuation and symbols of all scripts, also accents that stand alone (´).
-- - A sign that is a word of its own: ™ is tm, ³ is 3, Ⅲ is iii, ① is 1, ª is a; an emoji is itself.
-- - Nothing: accents, and characters that cannot be seen.
--
--   select fold_letters('Alien³'), title_entries(mark_signs(fold_letters('The LEGO™ Movie')));
--
-- What a sign separates is also found as one word (`alien3`), as before. The next migration computes the words of
-- earlier rows.
--
-- Titles and genres that nobody can see are blank. Movies that have one stop this migration, which names them and
-- changes nothing.

-- migrate:up
-- Not in SQL: PostgreSQL would expand it six times for each statement, which made a create 4 % slower.
create function is_visible(text) returns boolean
  language plpgsql immutable strict parallel safe as $$
begin
  return $1 ~
    E'[^\\u0001-\\u0020\\u007f-\\u00a0\\u00ad\\u034f\\u061c\\u115f-\\u1160\\u1680\\u17b4-\\u17b5\\u180b-\\u180f'
    '\\u2000-\\u200f\\u2028-\\u202f\\u205f-\\u206f\\u2800\\u3000\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0'
    '\\ufff0-\\ufffc\\U00013430-\\U00013442\\U00016fe4\\U0001bca0-\\U0001bca3\\U0001d159\\U0001d173-\\U0001d17a'
    '\\U000e0000-\\U000e0fff]';
end
$$;

comment on function is_visible(text) is
  'Whether a title or genre has a character that can be seen: not only blanks, control characters, fillers, and'
  ' characters that Unicode calls ignorable, such as a zero width space.';

do $$
declare
  found bigint;
  first_ids text;
begin
  select count(*), string_agg(m.id::text, ', ' order by m.id) filter (where m.place <= 10)
  into found, first_ids
  from (
    select id, row_number() over (order by id) as place
    from movies
    where not is_visible(title) or exists (select from unnest(genres) as genre where not is_visible(genre))
  ) as m;
  if found > 0 then
    raise exception using
      errcode = 'check_violation',
      message = 'movies with a title or genre of blanks and invisible characters alone are in the way: ' || found,
      detail = 'Their ids: ' || first_ids
        || case when found > 10 then format(' and %s more', found - 10) else '' end,
      hint = 'Change or delete these movies, and run migrate again.';
  end if;
end
$$;

-- Of a missing genre, it is null, which a constraint accepts.
alter table movies
  drop constraint movies_title_not_blank,
  drop constraint movies_genres_not_empty,
  add constraint movies_title_not_blank check (is_visible(title)) not valid,
  add constraint movies_genres_not_empty check (
        is_visible(genres[1])
    and is_visible(genres[2])
    and is_visible(genres[3])
    and is_visible(genres[4])
    and is_visible(genres[5])
  ) not valid;

create or replace function fold_letters(text) returns text
  language plpgsql immutable strict parallel safe as $$
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
$$;

comment on function fold_letters(text) is
  'The text in small letters without accents, other marks and invisible characters; digits of all scripts are 0 to 9.'
  ' U+001F stands beside a sign that is a word of its own (Alien³). Only `lower` depends on the locale: in the locale C'
  ' of libc, it knows a to z alone.';

create or replace function mark_signs(text) returns text
  language plpgsql immutable strict parallel safe as $$
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
$$;

create or replace function genre_entry(text) returns text
  language sql immutable strict parallel safe
return ' ' || btrim(
  translate(fold_letters(left($1, 100)), E'\t\n\x0b\x0c\r\u0085\u1680\u2028\u2029\u2800\x1f', repeat(' ', 10))
);

-- These functions have literals with backslashes. Where standard_conforming_strings is off for a server, a database or a
-- role, as before PostgreSQL 9.1, they would find and store wrong words. Other functions have no such literals, and no
-- function depends on other settings: DateStyle, TimeZone, search_path, lc_*, quote_all_identifiers.
alter function title_entries(text) set standard_conforming_strings = on;

-- A number with a `*`, as somebody types it (rocky 2*), is found in every spelling, too: what it finds without the `*`.
create or replace function title_query(text) returns tsquery
  language plpgsql immutable strict parallel safe set standard_conforming_strings = on as $$
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
$$;

-- migrate:down
do $$ begin raise exception 'cannot be reverted: the release before runs on this schema'; end $$;
