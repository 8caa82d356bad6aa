-- For GET /v1/movies sorted by created_at, or created in a range of times.

-- migrate:up transaction:false
create index concurrently movies_created_at on movies (created_at, id);

-- migrate:down transaction:false
drop index concurrently movies_created_at;
