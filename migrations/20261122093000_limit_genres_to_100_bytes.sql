-- A genre has at most 100 bytes of UTF-8, which also limits the size of a movie and of a page. Movies
-- with longer genres stop this migration, which names them and changes nothing.
--
-- `not valid` checks new rows from now on and does not read the table, so the table is locked only for a
-- moment. The next migration checks the rows that are there already.

-- migrate:up
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
    where exists (select from unnest(genres) as genre where octet_length(genre) > 100)
  ) as m;
  if found > 0 then
    raise exception using
      errcode = 'check_violation',
      message = 'movies with a genre of more than 100 bytes are in the way: ' || found,
      detail = 'Their ids: ' || first_ids
        || case when found > 10 then format(' and %s more', found - 10) else '' end,
      hint = 'Shorten these genres and run migrate again. To list them: select id, genre from movies,'
        ' unnest(genres) as genre where octet_length(genre) > 100 order by id';
  end if;
end
$$;

alter table movies
  add constraint movies_genres_at_most_100_bytes check (
        octet_length(genres[1]) <= 100
    and octet_length(genres[2]) <= 100
    and octet_length(genres[3]) <= 100
    and octet_length(genres[4]) <= 100
    and octet_length(genres[5]) <= 100
  ) not valid;

-- migrate:down
alter table movies drop constraint movies_genres_at_most_100_bytes;
