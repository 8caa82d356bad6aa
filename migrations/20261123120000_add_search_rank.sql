-- For GET /v1/movies: the order `sort=relevance` and the filter `genres_any`.

-- migrate:up
-- Sorts movies by relevance, ascending: the shortest title (in characters) first, then the newer year. One
-- character counts more than the distance of any two integers. `relevance` in service/catalogue/movie.py
-- computes the same value.
create function search_rank(title text, year bigint) returns bigint
  language sql immutable parallel safe
return length($1) * 10000000000 - $2;

-- At least one of the genres; genres_query finds all of them.
create function genres_any_query(text[]) returns tsquery
  language sql immutable strict parallel safe
return (
  select string_agg(
    ''' ' || replace(replace(left(genre, 100), '\', '\\'), '''', '''''') || '''', ' | '
  )::tsquery
  from unnest($1) as genre
);

-- migrate:down
drop function genres_any_query(text[]);
drop function search_rank(text, bigint);
