-- replaces: 20260105090000..20261124210001 (release 1.1.0)
--
-- The Idempotency-Key of each create that had one, with its response (queries/idempotency.sql).
-- docs/decisions/0012-idempotency-keys.md has the reasons.
--
-- The release before reads movie_id, created_at and idempotency_answers, which are empty: a later release drops them.

-- migrate:up
create table idempotency_keys (
  key         text        collate "C" primary key,
  fingerprint text        not null,
  expires_at  timestamptz not null default now() + interval '24 hours',
  movie_id    bigint,
  created_at  timestamptz,
  response    jsonb
) with (autovacuum_vacuum_scale_factor = 0.02);

comment on table idempotency_keys is 'The Idempotency-Key of each create that had one, with its response, for 24 hours.';
comment on column idempotency_keys.key is
  'As it was sent; of a client with a token: its id, a tab, and the key. In front of the key of a batch are "batch" and a'
  ' tab; behind that of a movie of a lenient batch are a tab and its place.';
comment on column idempotency_keys.fingerprint is 'SHA-256 of the fields that were sent, in hex.';
comment on column idempotency_keys.expires_at is
  'From then on the key counts as unused; its default says how long keys are kept.';
comment on column idempotency_keys.movie_id is 'Not used: the release before reads it.';
comment on column idempotency_keys.created_at is 'Not used: the release before reads it.';
comment on column idempotency_keys.response is
  'The movie, or the array of movies of a batch, as created; they may have changed since, or be gone.';

create index idempotency_keys_expires_at on idempotency_keys (expires_at);

comment on index idempotency_keys_expires_at is 'The service clears keys that have expired.';

create table idempotency_answers (
  key        text        collate "C" primary key references idempotency_keys on delete cascade,
  id         bigint      not null,
  title      text        not null,
  year       integer     not null,
  runtime    integer     not null,
  genres     text[]      not null,
  version    integer     not null,
  created_at timestamptz not null,
  updated_at timestamptz not null
);

comment on table idempotency_answers is 'Not used: the release before reads it, and finds it empty.';

-- migrate:down
do $$ begin raise exception 'cannot be reverted: the movies, keys and clients would be lost'; end $$;
