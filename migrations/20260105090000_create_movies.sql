-- The catalogue's one table. What the service promises of each column stands in the README;
-- the rules that PostgreSQL can hold by itself come with the next migration.

-- migrate:up
create table movies (
  id         bigint      generated always as identity primary key,
  title      text        not null,
  year       integer     not null,
  runtime    integer     not null,
  genres     text[]      not null,
  version    integer     not null default 1,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);

comment on column movies.runtime is 'minutes';
comment on column movies.version is 'raised by the trigger movies_keep_version whenever a movie changes';

-- migrate:down
drop table movies;
