-- Makes the service's roles in the database that psql is connected to. Run it as a superuser, or as the
-- database's owner with CREATEROLE, before the first migration or at any time later:
--
--   psql -d catalogue -f ops/roles.sql
--
-- Another run changes nothing. Default privileges are the same for every table, so migrations
-- (migrations/*limit_the_application.sql) limit the rights where this file ran before them.
--
-- Each role may have another name: -v owner=NAME -v app=NAME -v reader=NAME. In a schema other than
-- public: -v schema=NAME. Passwords are not in this file: set them with \password. What the roles are for
-- is in docs/operators/deploy.md.
\set ON_ERROR_STOP on
\if :{?owner}
\else
  \set owner catalogue_owner
\endif
\if :{?app}
\else
  \set app catalogue_app
\endif
\if :{?reader}
\else
  \set reader catalogue_reader
\endif
\if :{?schema}
\else
  \set schema public
\endif

begin;
set local client_min_messages to warning; -- no notices that something exists

select format('create role %I login', wanted.name)
from (values (:'owner'), (:'app'), (:'reader')) as wanted (name)
where not exists (select from pg_roles as r where r.rolname = wanted.name)
\gexec

-- A superuser needs no membership in the owner; others do for what follows.
select format('grant %I to current_user', :'owner')
where not pg_has_role(:'owner', 'usage')
\gexec

-- So that `migrate`, when it waits for a lock, may say which statement of the service holds it.
grant :"app" to :"owner";

-- PostgreSQL ends a statement of the service whose process has been killed; counting the genres may
-- take 60 s. (Nothing but the standby or a DBA ends a wait for a synchronous standby.)
alter role :"app" set client_connection_check_interval = '2s';

-- Only these roles may connect; PostgreSQL 14 also lets everybody create tables in public.
revoke all on database :"DBNAME" from public;
grant connect on database :"DBNAME" to :"owner", :"app", :"reader";
revoke all on schema :"schema" from public;
grant usage, create on schema :"schema" to :"owner";
grant usage on schema :"schema" to :"app", :"reader";

-- The tables of `migrate` itself, which completes them: the rights below then leave them out.
set local role :"owner";
set local search_path to :"schema";
create table if not exists schema_migrations (version text primary key);
create table if not exists alembic_version (
  version_num varchar(32) not null,
  constraint alembic_version_pkc primary key (version_num)
);
reset role;

-- In an older database, everything in the schema that has the same owner as movies gets the new one.
-- A sequence of an identity column goes with its table.
select format('alter table %s owner to %I', c.oid::regclass, :'owner')
from pg_class as c
where c.relnamespace = :'schema'::regnamespace
  and c.relkind in ('r', 'p', 'v', 'm')
  and c.relowner = (select m.relowner from pg_class as m where m.oid = to_regclass('movies'))
  and c.relowner <> :'owner'::regrole
union all
select format('alter function %s owner to %I', p.oid::regprocedure, :'owner')
from pg_proc as p
where p.pronamespace = :'schema'::regnamespace
  and p.proowner = (select m.relowner from pg_class as m where m.oid = to_regclass('movies'))
  and p.proowner <> :'owner'::regrole
  and not exists (select from pg_depend as d where d.objid = p.oid and d.deptype = 'e')
\gexec

-- Rights on what is there, and on what is created later. The application may read every table, and write what requests
-- write. Tables of your own keep the rights that they have.
grant select on all tables in schema :"schema" to :"app", :"reader";
grant usage on all sequences in schema :"schema" to :"app";
alter default privileges for role :"owner" in schema :"schema"
  grant select on tables to :"app", :"reader";
alter default privileges for role :"owner" in schema :"schema"
  grant usage on sequences to :"app";

-- The first migrations need a default for the tables that they create; the last one takes it back.
select format(
  'alter default privileges for role %I in schema %I %s',
  :'owner', :'schema',
  case when to_regclass('movies') is null
    then format('grant insert, update, delete on tables to %I', :'app')
    else format('revoke insert, update, delete on tables from %I', :'app')
  end
)
\gexec

-- The triggers of movies write movie_changes and movie_feed with the rights of the owner.
select
  format('revoke all on table %I from %I', t.name, :'app'),
  format('grant %s on table %I to %I', t.rights, t.name, :'app')
from (
  values
    ('movies', 'select, insert, update, delete'),
    ('movie_changes', 'select, delete'),
    ('movie_feed', 'select, update (cleared_to)'),
    ('search_words', 'select'),
    ('idempotency_keys', 'select, insert, update, delete'),
    ('idempotency_answers', 'select'),
    ('schema_migrations', 'select'),
    ('alembic_version', 'select')
) as t (name, rights)
where to_regclass(t.name) is not null
\gexec

-- Otherwise, whoever may make a table, also a temporary one, writes the feed through a trigger of his own. A dump that is
-- restored without rights gives them back to everybody.
select format('revoke all on function %s from public', p.oid::regprocedure)
from pg_proc as p
where p.pronamespace = :'schema'::regnamespace
  and p.proowner = :'owner'::regrole
  and p.prorettype = 'trigger'::regtype
\gexec

select format('revoke all on sequence movie_changes_id_seq from %I', :'app')
where to_regclass('movie_changes_id_seq') is not null
\gexec

-- Requests look clients up and record the day of use; only the owner changes them otherwise. The reader
-- sees no hashes of tokens.
select unnest(array[
  format('revoke all on table clients from %I, %I', :'app', :'reader'),
  format('revoke all on sequence clients_id_seq from %I', :'app'),
  format('grant select, update (last_used_on) on table clients to %I', :'app'),
  format(
    'grant select (id, name, scopes, expires_at, revoked_at, last_used_on, created_at,'
    ' previous_expires_at) on table clients to %I', :'reader'
  )
])
where to_regclass('clients') is not null
\gexec

commit;
