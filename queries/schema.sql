-- Queries about the schema.

-- name: get_applied_migrations()
-- set: transaction_read_only = on
-- Returns the versions of the applied migrations (`python -m service migrate`), and each time a fault, because of which
-- the service is not ready: row level security without a policy for this login hides every row of a table. With a
-- policy, it shows what you want it to show.
select s.version, f.fault
from (
  select string_agg(
    format(
      'row level security hides every row of %s from %s: run alter table %1$s disable row level security, or create a'
      ' policy', c.relname, current_user
    ), '; ' order by c.relname
  ) as fault
  from pg_class as c
  where c.oid in (
      to_regclass('movies'), to_regclass('idempotency_keys'), to_regclass('clients'), to_regclass('movie_changes'),
      to_regclass('movie_feed'), to_regclass('search_words'), to_regclass('schema_migrations')
    )
    and row_security_active(c.oid)
    and not exists (
      select
      from pg_policy as p
      where p.polrelid = c.oid
        and p.polpermissive
        and p.polcmd in ('*', 'r')
        and exists (select from unnest(p.polroles) as r (oid) where r.oid = 0 or pg_has_role(r.oid, 'usage'))
    )
) as f
left join schema_migrations as s on true;

-- name: get_schema_faults()
-- set: transaction_read_only = on
-- Returns what the service needs and the schema lacks, each with what to do: triggers, indexes and constraints that were
-- dropped, disabled or left invalid, and triggers behind the one that must be the last. Also what would hide or change
-- movies without a sign: row level security, rules, and a session that runs no triggers. Also trigger functions with
-- which others may write, a sequence that is behind its table, near its end, or gives ids twice, sort rules that have
-- changed under the indexes, and missing statistics. Names are compared, not definitions. If you do without one on
-- purpose, delete its name here.
with tables as (
  select c.oid, c.relname, c.relrowsecurity
  from pg_class as c
  where c.oid in (
    'movies'::regclass, 'idempotency_keys'::regclass, 'clients'::regclass, 'movie_changes'::regclass,
    'movie_feed'::regclass, 'search_words'::regclass, 'schema_migrations'::regclass
  )
),
needed as (
  select
    n.kind, name,
    coalesce(
      format(n.remedy, name), 'copy it from schema.sql, or delete its name from get_schema_faults in queries/schema.sql'
    ) as remedy
  from (
    values
      ('trigger', null, array[
        'zzz_movies_keep_version', 'movies_limit_inserted', 'movies_limit_updated', 'movies_limit_deleted',
        'movies_record_created', 'movies_record_updated', 'movies_record_deleted', 'movies_record_truncated',
        'movies_add_created_words', 'movies_add_updated_words'
      ]),
      ('index', null, array[
        'movies_search', 'movies_title', 'movies_year', 'movies_runtime', 'movies_rank', 'movies_created_at',
        'movies_updated_at', 'movies_external_id_unique', 'movies_external_id_prefix', 'movie_changes_of_movie',
        'idempotency_keys_expires_at', 'search_words_word', 'search_words_start', 'search_words_end'
      ]),
      ('constraint', null, array[
        'movies_pkey', 'movies_title_not_blank', 'movies_title_at_most_500_bytes', 'movies_year_1888_or_later',
        'movies_runtime_positive', 'movies_genres_one_to_five', 'movies_genres_no_null', 'movies_genres_not_empty',
        'movies_genres_different', 'movies_genres_at_most_100_bytes', 'movies_external_id_not_blank',
        'movies_external_id_at_most_255_bytes', 'movies_external_id_no_control_characters', 'movies_external_id_trimmed',
        'movies_version_positive', 'idempotency_keys_pkey',
        'clients_pkey', 'clients_name_is_unique', 'clients_name_is_printable', 'clients_token_hash_is_sha256',
        'clients_previous_token_hash_is_sha256', 'clients_scopes_are_known', 'clients_previous_token_expires',
        'movie_changes_pkey', 'movie_changes_kind_is_known', 'movie_feed_pkey', 'movie_feed_has_one_row'
      ]),
      ('not null of column', 'run alter table movies alter %s set not null', array[
        'title', 'year', 'runtime', 'genres', 'version', 'created_at', 'updated_at'
      ]),
      ('default of column', 'run alter table movies alter %s set default 1', array['version']),
      ('default of column', 'run alter table movies alter %s set default now()', array['created_at', 'updated_at']),
      ('row of', 'run insert into %s default values', array['movie_feed'])
  ) as n (kind, remedy, names)
  cross join unnest(n.names) as name
),
present as (
  select
    'trigger' as kind, t.tgname::text as name,
    -- Triggers of the feed are disabled while it is off.
    case
      when t.tgenabled not in ('O', 'A') and (t.tgname not like 'movies_record_%' or f.is_on)
      then format('disabled: run alter table %s enable trigger %I', c.relname, t.tgname)
      when t.tgenabled in ('O', 'A') and t.tgname like 'movies_record_%' and not f.is_on
      then format('enabled, but the feed is off: run alter table %s disable trigger %I', c.relname, t.tgname)
      when t.tgqual is not null or t.tgattr <> '' then 'restricted to some changes: replace it by that of schema.sql'
      else ''
    end as fault
  from pg_trigger as t
  join tables as c on c.oid = t.tgrelid
  cross join (select coalesce((select f.is_on from movie_feed as f), true) as is_on) as f
  union all
  select
    'index', c.relname,
    case when i.indisvalid then '' else format('invalid: run reindex index concurrently %s', c.relname) end
  from pg_index as i
  join pg_class as c on c.oid = i.indexrelid
  join tables as t on t.oid = i.indrelid
  union all
  select
    'constraint', c.conname,
    case
      when c.convalidated then '' else format('not valid: run alter table %s validate constraint %I', t.relname, c.conname)
    end
  from pg_constraint as c
  join tables as t on t.oid = c.conrelid
  union all
  select 'not null of column', a.attname, ''
  from pg_attribute as a
  where a.attrelid = 'movies'::regclass and a.attnotnull
  union all
  select 'default of column', a.attname, ''
  from pg_attribute as a
  where a.attrelid = 'movies'::regclass and a.atthasdef
  union all
  select 'row of', 'movie_feed', ''
  from movie_feed
)
select concat_ws(' ', n.kind, n.name, 'is', coalesce(p.fault, 'missing: ' || n.remedy)) as fault
from needed as n
left join present as p on p.kind = n.kind and p.name = n.name
where p.fault is distinct from ''
union all
select format(
  'trigger %s runs behind %s, so that its changes have no version: run alter trigger %1$I on %3$s rename to %4$I',
  t.tgname, k.tgname, c.relname, 'a_' || t.tgname
)
from tables as c
join pg_trigger as k on k.tgrelid = c.oid and k.tgname = format('zzz_%s_keep_version', c.relname)
join pg_trigger as t on t.tgrelid = c.oid and t.tgname > k.tgname
where t.tgenabled in ('O', 'A')
  and t.tgtype & 19 = 19 -- for each row (1), before (2) an update (16)
union all
-- What this login may do, and no policy lets it do. For a login that bypasses policies, those of any role count.
select format(
  'row level security of %s is enabled, and no policy is for %s: run alter table %1$s disable row level security, or'
  ' create policies', t.relname, string_agg(c.name, ', ' order by c.place)
)
from tables as t
cross join (
  values (1, 'select', 'r'), (2, 'insert', 'a'), (3, 'update', 'w'), (4, 'delete', 'd')
) as c (place, name, command)
where t.relrowsecurity
  and has_table_privilege(t.oid, c.name)
  and not exists (
    select
    from pg_policy as p
    where p.polrelid = t.oid
      and p.polpermissive
      and p.polcmd in ('*', c.command)
      and (
        not row_security_active(t.oid)
        or exists (select from unnest(p.polroles) as r (oid) where r.oid = 0 or pg_has_role(r.oid, 'usage'))
      )
  )
group by t.relname
union all
select format('rule %s of %s changes what statements do: run drop rule %1$I on %2$s', r.rulename, t.relname)
from pg_rewrite as r
join tables as t on t.oid = r.ev_class
union all
select format(
  'session_replication_role is %s, so that triggers do not run: run alter %s reset session_replication_role', s.setting,
  case s.source
    when 'user' then format('role %I', session_user)
    when 'database' then format('database %I', current_database())
    when 'database user' then format('role %I in database %I', session_user, current_database())
    else 'system'
  end
)
from pg_settings as s
where s.name = 'session_replication_role' and s.setting <> 'origin'
union all
-- With a trigger on a table of their own, they would write with the rights of its owner. No trigger that is there needs it.
select format(
  'function %s can be used by %s in other triggers: run revoke all on function %1$s from %2$s',
  p.oid::regprocedure, coalesce(quote_ident(r.rolname), 'public')
)
from pg_class as c
join pg_proc as p on p.pronamespace = c.relnamespace
cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
left join pg_roles as r on r.oid = a.grantee
where c.oid = 'movies'::regclass
  and p.prosecdef
  and p.prorettype = 'trigger'::regtype
  and a.grantee <> p.proowner
union all
select 'search_words is empty, so that nothing is suggested: run select add_search_words()'
where exists (select from movies) and not exists (select from search_words)
union all
-- After logical replication, or a load of data without sequences, the next id would be one that is there.
select format('sequence %s %s', s.seqrelid::regclass, f.fault)
from tables as t
join pg_depend as d on d.refobjid = t.oid and d.deptype in ('a', 'i')
join pg_sequence as s on s.seqrelid = d.objid
left join (
  -- Not movie_changes: its key has the transaction, too.
  values
    ('movies', (select max(m.id) from movies as m)),
    ('clients', (select max(c.id) from clients as c))
) as m (name, max_id) on m.name = t.relname
cross join lateral (
  -- Null for a login that may not use it: nothing is known then.
  select case
    when has_sequence_privilege(s.seqrelid, 'usage, select') then coalesce(pg_sequence_last_value(s.seqrelid), 0)
  end as id
) as last
cross join lateral (
  values
    (
      m.max_id > last.id,
      format(
        'is behind the ids of %s: run select setval(''%s'', max(id)) from %1$s', t.relname, s.seqrelid::regclass
      )
    ),
    (
      s.seqmax - last.id < 10000,
      format('has fewer than 10000 ids left: run alter sequence %s as bigint no maxvalue', s.seqrelid::regclass)
    ),
    (s.seqcycle, format('begins again after its last id: run alter sequence %s no cycle', s.seqrelid::regclass)),
    (s.seqincrement < 1, format('counts down: run alter sequence %s increment by 1', s.seqrelid::regclass))
) as f (is_found, fault)
where f.is_found
union all
select format(
  'collation of the database is %s now, and its indexes were sorted by %s: run reindex database %I;'
  ' alter database %I refresh collation version', v.actual, v.recorded, current_database(), current_database()
)
from find_changed_collation() as v
union all
select format(
  'collation %s is %s now, and the index %s was sorted by %s: run reindex index %s; alter collation %s refresh version',
  c.oid::regcollation, pg_collation_actual_version(c.oid), i.indexrelid::regclass, c.collversion,
  i.indexrelid::regclass, c.oid::regcollation
)
from tables as t
join pg_index as i on i.indrelid = t.oid
cross join unnest(i.indcollation) as k (oid)
join pg_collation as c on c.oid = k.oid
where c.collversion <> pg_collation_actual_version(c.oid)
union all
-- Those that the service fills are in the list; others of movies are in `needed`.
select format(
  'column %s of %s may not be null and has no default, so that no row can be added: copy its default from schema.sql, or'
  ' run alter table %2$s alter %1$I drop not null', a.attname, t.relname
)
from tables as t
join pg_attribute as a on a.attrelid = t.oid
where a.attnum > 0
  and not a.attisdropped
  and a.attnotnull
  and not a.atthasdef
  and a.attidentity = ''
  and t.relname <> 'schema_migrations'
  and concat_ws('.', t.relname, a.attname) <> all (array[
    'movies.title', 'movies.year', 'movies.runtime', 'movies.genres', 'movies.version', 'movies.created_at',
    'movies.updated_at', 'idempotency_keys.key', 'idempotency_keys.fingerprint', 'clients.name', 'clients.token_hash',
    'clients.scopes', 'movie_changes.transaction', 'movie_changes.movie_id', 'movie_changes.version',
    'movie_changes.kind', 'search_words.word'
  ])
union all
select 'movies has no statistics, so that lists are slow: run analyze movies'
from pg_class as c
join pg_namespace as n on n.oid = c.relnamespace
where c.oid = 'movies'::regclass
  and pg_relation_size(c.oid) > 2000000 -- some 10,000 movies; autovacuum analyzes these within a minute
  and (
    c.reltuples < 0
    or not row_security_active(c.oid) and not exists ( -- which hides the statistics, too
      select
      from pg_stats as s
      where s.schemaname = n.nspname
        and s.tablename = c.relname
    )
  )
order by fault;
