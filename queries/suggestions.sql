-- Suggestions for a search that finds nothing (GET /v1/movies).

-- name: suggest_movies(title, genres, genres_any, year_from, year_to, years, runtime_from, runtime_to, runtimes, created_at_from, created_at_to, updated_at_from, updated_at_to)
-- \set title '\'casablnca\'' \set genres null \set genres_any null
-- \set year_from 1930 \set year_to 1949 \set years null
-- \set runtime_from null \set runtime_to null \set runtimes null
-- \set created_at_from null \set created_at_to null
-- \set updated_at_from null \set updated_at_to null
-- set: transaction_read_only = on
-- set: statement_timeout = 500ms
-- Returns up to five movies whose titles come closest to the search, the closest first; they match the other filters.
-- The functions are in the migrations. closest_movies bounds the work: for 2 million movies it takes 6 ms, at most some
-- 50 ms, and 105 ms with a filter that almost no movie matches. Only if the server is overloaded does the query end by its
-- statement_timeout; then the list comes without suggestions.
-- Spellings of one title, such as Snow-White and Snow White, are suggested once: only the first 50 titles are compared.
select m.id, m.title, m.year, m.runtime, m.genres, m.external_id, m.version, m.created_at, m.updated_at
from (
  select (array_agg(c.id order by c.place))[1] as id, min(c.place) as place
  from (
    select m.id, m.title, row_number() over (order by c.likeness desc, search_rank(m.title, m.year), m.title) as place
    from closest_movies(
      :title, :genres, :genres_any, :year_from, :year_to, :years, :runtime_from, :runtime_to, :runtimes,
      :created_at_from, :created_at_to, :updated_at_from, :updated_at_to
    ) as c
    join movies as m on m.id = c.id
    where movie_matches(
      m, null, :genres, :genres_any, :year_from, :year_to, :years, :runtime_from, :runtime_to, :runtimes,
      :created_at_from, :created_at_to, :updated_at_from, :updated_at_to
    )
    order by place
    limit 50
  ) as c
  group by translate(mark_signs(fold_letters(c.title)), ' +-', '')
  order by place
  limit 5
) as s
join movies as m on m.id = s.id
order by s.place;
