-- A title or genre of these characters alone cannot be seen either: U+FFFC, U+13430 to U+13442, U+16FE4 and U+1D159.

-- migrate:up
create or replace function is_visible(text) returns boolean
  language plpgsql immutable strict parallel safe as $$
begin
  return $1 ~
    E'[^\\u0001-\\u0020\\u007f-\\u00a0\\u00ad\\u034f\\u061c\\u115f-\\u1160\\u1680\\u17b4-\\u17b5\\u180b-\\u180f'
    '\\u2000-\\u200f\\u2028-\\u202f\\u205f-\\u206f\\u2800\\u3000\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0'
    '\\ufff0-\\ufffc\\U00013430-\\U00013442\\U00016fe4\\U0001bca0-\\U0001bca3\\U0001d159\\U0001d173-\\U0001d17a'
    '\\U000e0000-\\U000e0fff]';
end
$$;

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

-- migrate:down
create or replace function is_visible(text) returns boolean
  language plpgsql immutable strict parallel safe as $$
begin
  return $1 ~
    E'[^\\u0001-\\u0020\\u007f-\\u00a0\\u00ad\\u034f\\u061c\\u115f-\\u1160\\u1680\\u17b4-\\u17b5\\u180b-\\u180f'
    '\\u2000-\\u200f\\u2028-\\u202f\\u205f-\\u206f\\u2800\\u3000\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0'
    '\\ufff0-\\ufffb\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff]';
end
$$;
