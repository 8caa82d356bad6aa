-- For GET /v1/movies sorted by updated_at, or updated in a range of times.

-- migrate:up transaction:false
create index concurrently movies_updated_at on movies (updated_at, id);

-- migrate:down transaction:false
drop index concurrently movies_updated_at;
