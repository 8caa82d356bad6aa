-- The Idempotency-Key of each POST /v1/movies that had one, with what it was answered, for 24 hours.
--
-- Two tables, as one statement writes all of it (queries/idempotency.sql): the key comes first and
-- decides whether a movie is created; the answer is the movie as it then was, whatever triggers made
-- of it, and PostgreSQL writes no row twice in a statement.

-- migrate:up
create table idempotency_keys (
  key         text        collate "C" primary key,
  fingerprint text        not null,
  expires_at  timestamptz not null default now() + interval '24 hours'
);

-- For the service, which clears those that have expired.
create index idempotency_keys_expires_at on idempotency_keys (expires_at);

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

comment on table idempotency_answers is
  'the movie as it was created; it may have changed since, or be gone';
comment on column idempotency_keys.fingerprint is 'SHA-256 of the fields that were sent, in hex';
comment on column idempotency_keys.expires_at is
  'from then on the key counts as unused; its default says how long keys are kept';

-- migrate:down
drop table idempotency_answers;
drop table idempotency_keys;
