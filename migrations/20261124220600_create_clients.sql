-- replaces: 20260105090000..20261124210001 (release 1.1.0)
--
-- The clients that use the API with a token: service/clients/clients.py has the form of tokens, docs/dbas.md how to add,
-- change and revoke clients in SQL. A token is not stored, only its SHA-256: nobody can guess its 222 random bits, so a
-- slow hash or a salt would add nothing.

-- migrate:up
create table clients (
  id                  bigint      generated always as identity primary key,
  name                text        not null,
  token_hash          text        collate "C" not null,
  scopes              text[]      not null,
  expires_at          timestamptz,
  revoked_at          timestamptz,
  last_used_on        date,
  created_at          timestamptz not null default now(),
  previous_token_hash text        collate "C",
  previous_expires_at timestamptz,
  constraint clients_name_is_unique unique (name),
  constraint clients_name_is_printable check (
    name ~ '^[^[:cntrl:]]{1,100}$' and name ~ '^[^[:space:]](.*[^[:space:]])?$'
  ),
  constraint clients_token_hash_is_sha256 check (token_hash ~ '^[0-9a-f]{64}$'),
  constraint clients_previous_token_hash_is_sha256 check (previous_token_hash ~ '^[0-9a-f]{64}$'),
  constraint clients_scopes_are_known check (
    scopes <@ '{read,write,admin}' and cardinality(scopes) > 0 and array_ndims(scopes) = 1
  ),
  constraint clients_previous_token_expires check (
    (previous_token_hash is null) = (previous_expires_at is null)
  )
);

comment on table clients is 'The clients that use the API with a token (docs/dbas.md).';
comment on column clients.id is 'A part of the token.';
comment on column clients.name is 'For people; it may be changed at any time.';
comment on column clients.token_hash is 'SHA-256 of the whole token, in hex.';
comment on column clients.scopes is
  'read; write, which includes read; admin, which includes write (no route of /v1 needs it).';
comment on column clients.expires_at is 'From then on its tokens are refused; null: never.';
comment on column clients.revoked_at is 'From then on its tokens are refused; null: not revoked.';
comment on column clients.last_used_on is 'A day in UTC; null: never.';
comment on column clients.created_at is 'When the client was added.';
comment on column clients.previous_token_hash is
  'Of the token before the last rotation, which works until previous_expires_at.';
comment on column clients.previous_expires_at is 'Until then the token before the last rotation works; null: there is none.';

-- migrate:down
do $$ begin raise exception 'cannot be reverted: the movies, keys and clients would be lost'; end $$;
