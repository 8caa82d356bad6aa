-- For the suggestions of GET /v1/movies: the words of all titles. Writes do not keep them; `python -m service
-- refresh-words` does, and each import.

-- migrate:up
create table title_words (
  word text collate "C" primary key,
  movies integer not null -- how many have the word
);

-- The word, and the word without each one of its letters. Two words that differ by one letter, or by two neighbours
-- that changed places, have one of these in common, and an index finds them. The idea is that of
-- https://github.com/wolfgarbe/SymSpell
create function near_words(text) returns text[]
  language sql immutable strict parallel safe
return (
  select array_agg(distinct overlay($1 placing '' from n for 1)) || $1 from generate_series(1, length($1)) as n
);

create index title_words_near on title_words using gin (near_words(word)) with (fastupdate = off);

-- Changes only the words that differ, and returns how many words there are: of up to 30 letters, in alphabets.
create function refresh_title_words() returns bigint
  language plpgsql as $$
begin
  -- One refresh at a time; readers go on.
  lock table title_words in share row exclusive mode;
  create temporary table counted on commit drop as
    select word collate "C" as word, ndoc as movies
    from ts_stat('select search from movies')
    where length(word) <= 30 and word ~ '^[a-z0-9\u00df-\u0dff\u10a0-\u10ff\u1e00-\u1fff]+$';
  delete from title_words as t
  where not exists (select from counted as c where c.word = t.word);
  insert into title_words as t (word, movies)
  select c.word, c.movies from counted as c
  on conflict (word) do update set movies = excluded.movies where t.movies <> excluded.movies;
  return (select count(*) from counted);
end
$$;

-- migrate:down
drop function refresh_title_words();
drop table title_words;
drop function near_words(text);
