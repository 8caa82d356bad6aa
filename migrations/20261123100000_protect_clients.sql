-- Takes from every role but the owner the right to change clients and to see the hashes of tokens, which
-- default privileges, such as those of ops/roles.sql, give out for each new table. That file need not run
-- again.
--
-- Two kinds of roles keep what they need: one that may record the day of use goes on serving requests, and
-- any other one goes on reading the other columns.

-- migrate:up
do $$
declare
  grantee text;
  kept text;
begin
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
-- Nothing: the release before needs no more rights.
