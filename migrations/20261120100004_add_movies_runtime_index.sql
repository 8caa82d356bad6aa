-- For GET /v1/movies sorted by runtime, or of some runtimes; year is in it to filter without the table.

-- migrate:up transaction:false
create index concurrently movies_runtime on movies (runtime, id, year);

-- migrate:down transaction:false
drop index concurrently movies_runtime;
