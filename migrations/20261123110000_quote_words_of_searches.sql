-- With libc, PostgreSQL before 18 takes U+1680 (ogham space mark) for a blank, so a search for a word
-- with it was a syntax error. In quotes, it is a letter of the word, as in the column `search`.

-- migrate:up
create or replace function title_query(text) returns tsquery
  language sql immutable strict parallel safe
return (
  select string_agg(distinct '''' || replace(word || '''', '*''', ''':*'), ' & ')::tsquery
  from unnest(string_to_array(replace(fold_text($1), '*', '* '), ' ')) as word
  where word not in ('', '*')
);

-- migrate:down
create or replace function title_query(text) returns tsquery
  language sql immutable strict parallel safe
return (
  select string_agg(distinct replace(word, '*', ':*'), ' & ')::tsquery
  from unnest(string_to_array(replace(fold_text($1), '*', '* '), ' ')) as word
  where word not in ('', '*')
);
