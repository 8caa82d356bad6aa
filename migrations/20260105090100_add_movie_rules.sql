-- The rules of a movie, for every writer and not only for the service, and a trigger that keeps
-- version and updated_at, so that a version number never stands for two states of a movie.
--
-- A violated constraint reaches the client by its name, as a validation failure. The names are
-- movies_<column>_<rule>: the service reads the field out of them. Only what depends on the clock
-- (a year in the future) is left to the service.

-- migrate:up
alter table movies
  add constraint movies_title_not_blank check (title ~ '\S'),
  add constraint movies_title_at_most_500_bytes check (octet_length(title) <= 500),
  add constraint movies_year_1888_or_later check (year >= 1888),
  add constraint movies_runtime_positive check (runtime > 0),
  -- One dimension, counted from 1: movies_genres_different relies on it.
  add constraint movies_genres_one_to_five check (
        array_ndims(genres) = 1
    and array_lower(genres, 1) = 1
    and cardinality(genres) between 1 and 5
  ),
  add constraint movies_genres_no_null check (num_nulls(variadic genres) = 0),
  add constraint movies_genres_not_empty check ('' <> all (genres)),
  -- There are five at most: each is compared with those after it, which needs no function.
  add constraint movies_genres_different check (
        genres[1] <> all (genres[2:5])
    and genres[2] <> all (genres[3:5])
    and genres[3] <> all (genres[4:5])
    and genres[4] <> all (genres[5:5])
  ),
  add constraint movies_version_positive check (version > 0);

-- A column added to movies later belongs in both rows below.
create function movies_keep_version() returns trigger language plpgsql as $$
begin
  if (new.id, new.title, new.year, new.runtime, new.genres, new.created_at)
     is distinct from
     (old.id, old.title, old.year, old.runtime, old.genres, old.created_at)
  then
    new.version := old.version + 1;
    -- now() is when the transaction began: one that waited must not turn the time back.
    new.updated_at := greatest(now(), old.updated_at);
  else
    new.version := old.version;
    new.updated_at := old.updated_at;
  end if;
  return new;
end
$$;

create trigger movies_keep_version before update on movies
  for each row execute function movies_keep_version();

-- migrate:down
drop trigger movies_keep_version on movies;
drop function movies_keep_version();
alter table movies
  drop constraint movies_title_not_blank,
  drop constraint movies_title_at_most_500_bytes,
  drop constraint movies_year_1888_or_later,
  drop constraint movies_runtime_positive,
  drop constraint movies_genres_one_to_five,
  drop constraint movies_genres_no_null,
  drop constraint movies_genres_not_empty,
  drop constraint movies_genres_different,
  drop constraint movies_version_positive;
