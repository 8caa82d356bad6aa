-- For GET /v1/movies sorted by relevance, which is the default order of a search by title.

-- migrate:up transaction:false
create index concurrently movies_rank on movies (search_rank(title, year), id);

-- migrate:down transaction:false
drop index concurrently movies_rank;
