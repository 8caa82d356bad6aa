-- In a database with a Turkish locale, `lower` makes I a dotless i, so a search for "titanic" missed
-- "TITANIC". I is the only letter that `lower` changes by language and that is still different when
-- marks are removed.

-- migrate:up
create or replace function fold_text(text) returns text
  language sql immutable parallel safe
return case
  when octet_length($1) = length($1) and length($1) <= 100
  then regexp_replace(
    lower(replace($1, 'I', 'i')), '[\u0001-\u0029\u002b-\u002f:-@\[-`{-\u007f]+', ' ', 'g'
  )
  else regexp_replace(
    regexp_replace(
      regexp_replace(
        replace(lower(replace(normalize($1, nfkd), 'I', 'i')), 'ς', 'σ'),
        '[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+', '', 'g'
      ),
      '[\u0001-\u0029\u002b-\u002f:-@\[-`{-\u00bf\u00d7\u00f7\u2000-\u206f\u20a0-\u20cf\u2190-\u2bff'
      '\u2e00-\u2e7f\u3000-\u3004\u3008-\u3020\u3030\u30fb\ufe10-\ufe6f]+', ' ', 'g'
    ),
    '([^ *]{100})[^ *]+', '\1', 'g'
  )
end;

-- What is stored follows, in databases with such a locale only: the others do not read the table.
update movies set title = title, genres = genres
where lower('I') <> 'i' and search is distinct from movie_search(title, genres);

-- migrate:down
create or replace function fold_text(text) returns text
  language sql immutable parallel safe
return case
  when octet_length($1) = length($1) and length($1) <= 100
  then regexp_replace(lower($1), '[\u0001-\u0029\u002b-\u002f:-@\[-`{-\u007f]+', ' ', 'g')
  else regexp_replace(
    regexp_replace(
      regexp_replace(
        replace(lower(normalize($1, nfkd)), 'ς', 'σ'),
        '[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+', '', 'g'
      ),
      '[\u0001-\u0029\u002b-\u002f:-@\[-`{-\u00bf\u00d7\u00f7\u2000-\u206f\u20a0-\u20cf\u2190-\u2bff'
      '\u2e00-\u2e7f\u3000-\u3004\u3008-\u3020\u3030\u30fb\ufe10-\ufe6f]+', ' ', 'g'
    ),
    '([^ *]{100})[^ *]+', '\1', 'g'
  )
end;

update movies set title = title, genres = genres
where lower('I') <> 'i' and search is distinct from movie_search(title, genres);
