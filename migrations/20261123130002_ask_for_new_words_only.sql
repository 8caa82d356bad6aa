-- All rows have the new words: a search need not ask for those before.

-- migrate:up
drop function title_query(text);
drop function genres_query(text[]);
drop function genres_any_query(text[]);
alter function title_query_after(text) rename to title_query;
alter function genres_query_after(text[]) rename to genres_query;
alter function genres_any_query_after(text[]) rename to genres_any_query;
drop function title_query_before(text);
drop function genres_query_before(text[]);
drop function genres_any_query_before(text[]);
drop function fold_text(text);

-- migrate:down
create function fold_text(text) returns text
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

create function title_query_before(text) returns tsquery
  language sql immutable strict parallel safe
return (
  select string_agg(distinct '''' || replace(word || '''', '*''', ''':*'), ' & ')::tsquery
  from unnest(string_to_array(replace(fold_text($1), '*', '* '), ' ')) as word
  where word not in ('', '*')
);

create function genres_query_before(text[]) returns tsquery
  language sql immutable strict parallel safe
return (
  select string_agg(
    ''' ' || replace(replace(left(genre, 100), '\', '\\'), '''', '''''') || '''', ' & '
  )::tsquery
  from unnest($1) as genre
);

create function genres_any_query_before(text[]) returns tsquery
  language sql immutable strict parallel safe
return (
  select string_agg(
    ''' ' || replace(replace(left(genre, 100), '\', '\\'), '''', '''''') || '''', ' | '
  )::tsquery
  from unnest($1) as genre
);

alter function title_query(text) rename to title_query_after;
alter function genres_query(text[]) rename to genres_query_after;
alter function genres_any_query(text[]) rename to genres_any_query_after;

create function title_query(text) returns tsquery
  language sql immutable strict parallel safe
return coalesce(
  title_query_before($1) || title_query_after($1), title_query_after($1), title_query_before($1)
);

create function genres_query(text[]) returns tsquery
  language sql immutable strict parallel safe
return genres_query_before($1) || genres_query_after($1);

create function genres_any_query(text[]) returns tsquery
  language sql immutable strict parallel safe
return genres_any_query_before($1) || genres_any_query_after($1);
