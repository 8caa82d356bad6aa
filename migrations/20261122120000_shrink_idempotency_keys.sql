-- The row of a key has the id and the time of the movie that the key created. The response to a repeated
-- request is made of this id, this time, version 1, and the fields of the request: its fingerprint proves
-- that they are the fields of the first request. It does not matter whether the movie has changed since.
-- idempotency_answers has a copy of a movie only if a trigger changed the movie when it was created, and
-- for 24 hours the copies that the previous release stored.
--
-- With its indexes, a key of 36 characters takes 250 bytes instead of 470 to 1,470 (100,000 keys). While
-- processes of the previous release still run, they respond 409 to a repeated key that this release stored.

-- migrate:up
alter table idempotency_keys
  add column movie_id bigint,
  add column created_at timestamptz;

comment on table idempotency_answers is
  'the movie as it was created, if that is not what was sent; it may have changed since, or be gone';
comment on column idempotency_keys.movie_id is 'null: see idempotency_answers';
comment on column idempotency_keys.created_at is 'of the movie';

-- migrate:down
-- If a movie has changed since, its key gets no copy: a repeated request gets a 409 until the key expires.
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
