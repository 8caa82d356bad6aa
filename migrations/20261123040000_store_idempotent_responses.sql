-- The response to a create is stored in the row of its key, as a JSON object with the columns of the movie.
--
-- The release before goes on using movie_id, created_at and idempotency_answers, and this release reads
-- them for keys that were used before. A key of this release has none of them, so the release before
-- responds 409 to its repeats and creates no second movie.
--
-- A later release drops idempotency_keys.movie_id, idempotency_keys.created_at and idempotency_answers, when
-- no running release reads them.

-- migrate:up
alter table idempotency_keys add column response jsonb;

comment on table idempotency_answers is 'not used by this release; those of the release before';
comment on column idempotency_keys.movie_id is 'of keys of the release before; else null';
comment on column idempotency_keys.created_at is 'of the movie, if movie_id is not null';
comment on column idempotency_keys.response is
  'the movie as it was created; it may have changed since, or be gone';

-- migrate:down
insert into idempotency_answers
  (key, id, title, year, runtime, genres, version, created_at, updated_at)
select k.key, r.id, r.title, r.year, r.runtime, r.genres, r.version, r.created_at, r.updated_at
from idempotency_keys as k
cross join jsonb_to_record(k.response) as r (
  id bigint, title text, year integer, runtime integer, genres text[],
  version integer, created_at timestamptz, updated_at timestamptz
)
where k.movie_id is null and k.response is not null;

alter table idempotency_keys drop column response;

comment on table idempotency_answers is
  'the movie as it was created, if that is not what was sent; it may have changed since, or be gone';
comment on column idempotency_keys.movie_id is 'null: see idempotency_answers';
comment on column idempotency_keys.created_at is 'of the movie';
