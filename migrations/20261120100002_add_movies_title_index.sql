-- For GET /v1/movies sorted by title.

-- migrate:up transaction:false
create index concurrently movies_title on movies (title, id);

-- migrate:down transaction:false
drop index concurrently movies_title;
