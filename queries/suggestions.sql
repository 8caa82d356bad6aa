-- Suggestions for a search that finds nothing (GET /v1/movies).

-- name: suggest_titles(title, genres, genres_any, year_from, year_to, years, runtime_from, runtime_to, runtimes, created_at_from, created_at_to, updated_at_from, updated_at_to)
-- \set title '\'casablnca\'' \set genres null \set genres_any null
-- \set year_from 1930 \set year_to 1949 \set years null
-- \set runtime_from null \set runtime_to null \set runtimes null
-- \set created_at_from null \set created_at_to null
-- \set updated_at_from null \set updated_at_to null
-- set: transaction_read_only = on
-- set: statement_timeout = 500ms
-- Returns up to five titles that come closest to the search, the closest first; of movies that match the other filters.
-- The functions are in the migrations. closest_movies bounds the work: it takes 4 ms for 2 million movies, and at most
-- 55 ms. Only if the server is overloaded does it end by the statement_timeout; then the list comes without suggestions.
select m.title
from closest_movies(:title) as c
join movies as m on m.id = c.id
where movie_matches(
  m, null, :genres, :genres_any, :year_from, :year_to, :years, :runtime_from, :runtime_to, :runtimes,
  :created_at_from, :created_at_to, :updated_at_from, :updated_at_to
)
group by m.title
order by max(c.likeness) desc, min(search_rank(m.title, m.year)), m.title
limit 5;
