-- For the filters of GET /v1/movies by title and genres.

-- migrate:up transaction:false
create index concurrently movies_search on movies using gin (search);

-- migrate:down transaction:false
drop index concurrently movies_search;
