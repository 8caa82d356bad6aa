-- If you add a column `m` to movies, `movie_matches(m, ...)` gets that column; `m.*` is always the whole movie.

-- migrate:up
do $$ begin
  execute replace(
    pg_get_functiondef('closest_movies(text,jsonb)'::regprocedure),
    'movie_matches(m, other_filters)', 'movie_matches(m.*, other_filters)'
  );
end $$;

-- migrate:down
do $$ begin
  execute replace(
    pg_get_functiondef('closest_movies(text,jsonb)'::regprocedure),
    'movie_matches(m.*, other_filters)', 'movie_matches(m, other_filters)'
  );
end $$;
