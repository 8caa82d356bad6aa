-- replaces: 20260105090000..20261124210001 (release 1.1.0)
--
-- The movies, their rules for every writer, and the indexes of lists.
--
-- A violated constraint reaches the client by its name, as a validation failure. The names are movies_<column>_<rule>: the
-- service reads the field out of them. Only what depends on the clock (a year in the future) is left to the service.

-- migrate:up
create table movies (
  id         bigint      generated always as identity primary key,
  title      text        not null,
  year       integer     not null,
  runtime    integer     not null,
  genres     text[]      not null,
  version    integer     not null default 1,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  search     tsvector    not null generated always as (movie_search(title, genres)) stored,
  constraint movies_title_not_blank check (title ~ '\S'),
  constraint movies_title_at_most_500_bytes check (octet_length(title) <= 500),
  constraint movies_year_1888_or_later check (year >= 1888),
  constraint movies_runtime_positive check (runtime > 0),
  -- One dimension, counted from 1: movies_genres_different relies on it.
  constraint movies_genres_one_to_five check (
        array_ndims(genres) = 1
    and array_lower(genres, 1) = 1
    and cardinality(genres) between 1 and 5
  ),
  constraint movies_genres_no_null check (num_nulls(variadic genres) = 0),
  constraint movies_genres_not_empty check ('' <> all (genres)),
  -- There are five at most: each is compared with those after it, which needs no function.
  constraint movies_genres_different check (
        genres[1] <> all (genres[2:5])
    and genres[2] <> all (genres[3:5])
    and genres[3] <> all (genres[4:5])
    and genres[4] <> all (genres[5:5])
  ),
  -- It also limits the size of a movie and of a page.
  constraint movies_genres_at_most_100_bytes check (
        octet_length(genres[1]) <= 100
    and octet_length(genres[2]) <= 100
    and octet_length(genres[3]) <= 100
    and octet_length(genres[4]) <= 100
    and octet_length(genres[5]) <= 100
  ),
  constraint movies_version_positive check (version > 0)
) with (autovacuum_vacuum_scale_factor = 0.02); -- 20 % dead rows, the default, would make lists slower

comment on table movies is
  'The catalogue. Anybody may write it: constraints and triggers keep the rules, versions, the feed and the words.';
comment on column movies.id is 'Clients know a movie by it: it never changes, and no other movie gets it again.';
comment on column movies.title is 'As clients sent it: not blank, at most 500 bytes of UTF-8.';
comment on column movies.year is 'Of the release, from 1888; the service also refuses years in the future.';
comment on column movies.runtime is 'In minutes, at least 1; clients see `107 mins`.';
comment on column movies.genres is 'One to five different ones, of 1 to 100 bytes each, in the order that clients sent.';
comment on column movies.version is 'The trigger zzz_movies_keep_version raises it whenever a movie changes; the ETag has it.';
comment on column movies.created_at is 'When the transaction began that created the movie.';
comment on column movies.updated_at is 'When the transaction of the last change began; a trigger keeps it.';
comment on column movies.search is 'The words of the title and the genres: `search @@ title_query(''spider man'')` finds movies.';

create index movies_search on movies using gin (search);
create index movies_title on movies (title, id);
create index movies_year on movies (year, id, runtime);
create index movies_runtime on movies (runtime, id, year);
create index movies_rank on movies (search_rank(title, year), id);
create index movies_created_at on movies (created_at, id);
create index movies_updated_at on movies (updated_at, id);

comment on index movies_search is 'Filters title, genres and genres_any of lists, and suggestions.';
comment on index movies_title is 'Order by title of lists.';
comment on index movies_year is 'Order and filter by year of lists; also counts movies of some years and runtimes.';
comment on index movies_runtime is 'Order and filter by runtime of lists; also counts movies of some runtimes and years.';
comment on index movies_rank is 'Order by relevance of lists whose search matches many movies.';
comment on index movies_created_at is 'Order and filter by created_at of lists.';
comment on index movies_updated_at is 'Order and filter by updated_at of lists.';

create function movies_keep_version() returns trigger language plpgsql as $$
begin
  if new.id <> old.id then
    raise exception using
      errcode = 'generated_always',
      message = format('the id of movie %s cannot be changed', old.id),
      hint = 'Clients and the feed know a movie by its id: insert another movie, and delete this one.';
  end if;
  new.search := old.search;
  new.version := old.version;
  new.updated_at := old.updated_at;
  if new *<> old then
    new.version := old.version + 1;
    -- now() is when the transaction began: one that waited must not turn the time back.
    new.updated_at := greatest(now(), old.updated_at);
  end if;
  return new;
end
$$;

comment on function movies_keep_version() is
  'Raises version and updated_at if any column changes, and refuses a change of id.';

-- `*<>` compares values byte by byte, so it also works for types without `=`, such as json. PostgreSQL computes generated
-- columns after this trigger; until then, they are null in the new row.
create trigger zzz_movies_keep_version before update on movies
  for each row execute function movies_keep_version();

comment on trigger zzz_movies_keep_version on movies is
  'Keeps version, updated_at and id. Triggers of one kind run in the order of their names: this one must be the last,'
  ' otherwise a change by a trigger behind it has no version, no ETag and no place in the feed.';

-- migrate:down
do $$ begin raise exception 'cannot be reverted: the movies, keys and clients would be lost'; end $$;
