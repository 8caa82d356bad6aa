-- A key is stored with the id and the time of its movie. A repeat sends the same fields again, as its
-- fingerprint proves, so the response consists of these, the id, the time and version 1, whatever has
-- happened to the movie since. idempotency_answers has a copy only of movies that a trigger changed while
-- they were created, and for 24 hours those of the release before.
--
-- With its indexes, a key of 36 characters takes 250 bytes instead of 470 to 1,470 (100,000 keys). While this
-- release goes out, processes of the former one respond 409 to repeats of new keys.

-- migrate:up
alter table idempotency_keys
  add column movie_id bigint,
  add column created_at timestamptz;

comment on table idempotency_answers is
  'the movie as it was created, if that is not what was sent; it may have changed since, or be gone';
comment on column idempotency_keys.movie_id is 'null: see idempotency_answers';
comment on column idempotency_keys.created_at is 'of the movie';

-- migrate:down
-- Keys of movies that have changed since get no copy: repeats of them are 409 until they expire.
insert into idempotency_answers
  (key, id, title, year, runtime, genres, version, created_at, updated_at)
select k.key, m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
from idempotency_keys as k
join movies as m on m.id = k.movie_id
where m.version = 1
on conflict (key) do nothing;

alter table idempotency_keys
  drop column movie_id,
  drop column created_at;

comment on table idempotency_answers is
  'the movie as it was created; it may have changed since, or be gone';
