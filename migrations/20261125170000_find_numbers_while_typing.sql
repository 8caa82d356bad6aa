-- A number with a `*`, as somebody types it (rocky 2*), is found in every spelling, too: what it finds without the `*`.

-- migrate:up
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
