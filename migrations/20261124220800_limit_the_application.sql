-- replaces: 20260105090000..20261124210001 (release 1.1.0)
--
-- Default privileges, such as those of ops/roles.sql, give roles that serve requests the right to write each new table.
-- They keep what the queries use: triggers write the feed and the words with the rights of the owner, and only the owner
-- changes clients and sees the hashes of tokens.
--
-- They may read tables that the owner creates later, such as a DBA's audit of changes, and not write them. A later
-- migration with a table that requests write grants that to the roles that may insert movies, as below.

-- migrate:up
do $$
declare
  grantee text;
  kept text;
begin
  for grantee in
    select distinct coalesce(quote_ident(r.rolname), 'public')
    from pg_class as c
    cross join aclexplode(c.relacl) as a
    left join pg_roles as r on r.oid = a.grantee -- none: public
    where c.oid = 'movies'::regclass and a.privilege_type = 'INSERT' and a.grantee <> c.relowner
  loop
    execute format(
      'revoke all on table movie_changes, movie_feed, search_words, idempotency_answers from %1$s;'
      'revoke all on sequence movie_changes_id_seq from %1$s;'
      'grant select on table movie_changes, movie_feed, search_words, idempotency_answers to %1$s;'
      'grant delete on table movie_changes to %1$s;'
      'grant update (cleared_to) on table movie_feed to %1$s;'
      'alter default privileges in schema %2$I revoke insert, update, delete on tables from %1$s',
      grantee, current_schema()
    );
  end loop;

  -- A role that may record the day of use serves requests; any other one goes on reading what is no secret.
  for grantee, kept in
    select distinct
      format('%I', coalesce(r.rolname, 'public')),
      case
        when has_column_privilege(coalesce(r.rolname, 'public'), c.oid, 'last_used_on', 'update')
        then 'select, update (last_used_on)'
        else 'select (id, name, scopes, expires_at, revoked_at, last_used_on, created_at,'
          ' previous_expires_at)'
      end
    from pg_class as c
    cross join aclexplode(c.relacl) as a
    left join pg_roles as r on r.oid = a.grantee -- none: public
    where c.oid = 'clients'::regclass and a.grantee <> c.relowner
  loop
    execute format('revoke all on table clients from %s', grantee);
    execute format('revoke all on sequence clients_id_seq from %s', grantee);
    execute format('grant %s on table clients to %s', kept, grantee);
  end loop;
end
$$;

-- migrate:down
do $$ begin raise exception 'cannot be reverted: the movies, keys and clients would be lost'; end $$;
