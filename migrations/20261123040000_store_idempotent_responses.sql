-- The response to a create is stored in the row of its key, as a JSON object with the columns of the movie.
--
-- The previous release still uses movie_id, created_at and idempotency_answers. This release reads them for
-- keys that the previous release stored, and does not fill them. So if a process of the previous release
-- gets a repeated key that this release stored, it responds 409 and creates no second movie.
--
-- A later release can drop idempotency_keys.movie_id, idempotency_keys.created_at and idempotency_answers,
-- when no process of the previous release runs any more and its keys have expired.

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
