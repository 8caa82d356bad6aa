-- Queries about the schema.

-- name: get_applied_migrations()
-- set: transaction_read_only = on
-- Returns the versions of the applied migrations (`python -m service migrate`).
select s.version
from schema_migrations as s;

-- name: get_schema_faults()
-- set: transaction_read_only = on
-- Returns what the service needs and the schema lacks: triggers, indexes and constraints that were dropped, disabled or
-- left invalid, and triggers behind the one that must be the last. Also what would hide or change movies without a sign:
-- row level security, rules, and a session that runs no triggers. Also a sequence that is behind its table, near its
-- end, or gives ids twice, sort rules that have changed under the indexes, and statistics. Names are compared, not definitions. If
-- you do without one on purpose, delete its name here.
with tables as (
  select c.oid, c.relname, c.relrowsecurity
  from pg_class as c
  where c.oid in (
    'movies'::regclass, 'idempotency_keys'::regclass, 'clients'::regclass, 'movie_changes'::regclass,
    'movie_feed'::regclass, 'search_words'::regclass
  )
),
needed as (
  select n.kind, name
  from (
    values
      ('trigger', array[
        'zzz_movies_keep_version', 'movies_limit_inserted', 'movies_limit_updated', 'movies_limit_deleted',
        'movies_record_created', 'movies_record_updated', 'movies_record_deleted', 'movies_record_truncated',
        'movies_add_created_words', 'movies_add_updated_words'
      ]),
      ('index', array[
        'movies_search', 'movies_title', 'movies_year', 'movies_runtime', 'movies_rank', 'movies_created_at',
        'movies_updated_at', 'movies_external_id_unique', 'movie_changes_deleted', 'idempotency_keys_expires_at', 'search_words_word', 'search_words_start', 'search_words_end'
      ]),
      ('constraint', array[
        'movies_pkey', 'movies_title_not_blank', 'movies_title_at_most_500_bytes', 'movies_year_1888_or_later',
        'movies_runtime_positive', 'movies_genres_one_to_five', 'movies_genres_no_null', 'movies_genres_not_empty',
        'movies_genres_different', 'movies_genres_at_most_100_bytes', 'movies_external_id_not_blank',
        'movies_external_id_at_most_255_bytes', 'movies_external_id_no_control_characters', 'movies_version_positive',
        'idempotency_keys_pkey',
        'clients_pkey', 'clients_name_is_unique', 'clients_name_is_printable', 'clients_token_hash_is_sha256',
        'clients_previous_token_hash_is_sha256', 'clients_scopes_are_known', 'clients_previous_token_expires',
        'movie_changes_pkey', 'movie_changes_kind_is_known', 'movie_feed_pkey', 'movie_feed_has_one_row'
      ]),
      ('not null of column', array['title', 'year', 'runtime', 'genres', 'version', 'created_at', 'updated_at']),
      ('default of column', array['version', 'created_at', 'updated_at']),
      ('row of', array['movie_feed'])
  ) as n (kind, names)
  cross join unnest(n.names) as name
),
present as (
  select
    'trigger' as kind, t.tgname::text as name,
    -- Triggers of the feed are disabled while it is off.
    case
      when t.tgenabled not in ('O', 'A') and (t.tgname not like 'movies_record_%' or f.is_on) then 'disabled'
      when t.tgenabled in ('O', 'A') and t.tgname like 'movies_record_%' and not f.is_on
      then 'enabled, but the feed is off'
      when t.tgqual is not null or t.tgattr <> '' then 'restricted to some changes'
      else ''
    end as fault
  from pg_trigger as t
  cross join (select coalesce((select f.is_on from movie_feed as f), true) as is_on) as f
  where t.tgrelid = 'movies'::regclass
  union all
  select 'index', c.relname, case when i.indisvalid then '' else 'invalid' end
  from pg_index as i
  join pg_class as c on c.oid = i.indexrelid
  join tables as t on t.oid = i.indrelid
  union all
  select 'constraint', c.conname, case when c.convalidated then '' else 'not valid' end
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
select concat_ws(' ', n.kind, n.name, 'is', coalesce(p.fault, 'missing')) as fault
from needed as n
left join present as p on p.kind = n.kind and p.name = n.name
where p.fault is distinct from ''
union all
select format(
  'trigger %s runs behind zzz_movies_keep_version, so that its changes have no version: rename it', t.tgname
)
from pg_trigger as t
where t.tgrelid = 'movies'::regclass
  and t.tgname > 'zzz_movies_keep_version'
  and t.tgenabled in ('O', 'A')
  and t.tgtype & 19 = 19 -- for each row (1), before (2) an update (16)
union all
select format('row level security of %s is enabled', t.relname)
from tables as t
where t.relrowsecurity
union all
select format('rule %s of %s changes what statements do', r.rulename, t.relname)
from pg_rewrite as r
join tables as t on t.oid = r.ev_class
union all
select format('session_replication_role is %s, so that triggers do not run', r.setting)
from current_setting('session_replication_role') as r (setting)
where r.setting <> 'origin'
union all
select 'search_words is empty, so that nothing is suggested: run select add_search_words()'
where exists (select from movies) and not exists (select from search_words)
union all
-- After logical replication, or a load of data without sequences, the next id would be one that is there.
select format('sequence %s %s', s.seqrelid::regclass, f.fault)
from (
  values
    ('movies', (select max(m.id) from movies as m)),
    ('clients', (select max(c.id) from clients as c)),
    ('movie_changes', null) -- its key has the transaction, too
) as t (name, max_id)
join pg_sequence as s on s.seqrelid = pg_get_serial_sequence(t.name, 'id')::regclass
cross join lateral (
  -- Null for a login that may not use it: nothing is known then.
  select case
    when has_sequence_privilege(s.seqrelid, 'usage, select') then coalesce(pg_sequence_last_value(s.seqrelid), 0)
  end as id
) as last
cross join lateral (
  values
    (
      t.max_id > last.id,
      format(
        'is behind the ids of %s: run select setval(''%s'', max(id)) from %s', t.name, s.seqrelid::regclass, t.name
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
select 'movies has no statistics, so that lists are slow: run analyze movies'
from pg_class as c
join pg_namespace as n on n.oid = c.relnamespace
where c.oid = 'movies'::regclass
  and pg_relation_size(c.oid) > 2000000 -- some 10,000 movies; autovacuum analyzes these within a minute
  and (
    c.reltuples < 0
    or not exists (
      select
      from pg_stats as s
      where s.schemaname = n.nspname
        and s.tablename = c.relname
    )
  )
order by fault;
