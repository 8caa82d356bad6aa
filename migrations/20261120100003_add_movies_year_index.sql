-- For GET /v1/movies sorted by year, or of some years; runtime is in it to filter without the table.

-- migrate:up transaction:false
create index concurrently movies_year on movies (year, id, runtime);

-- migrate:down transaction:false
drop index concurrently movies_year;
