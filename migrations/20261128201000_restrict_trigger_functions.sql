-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- Whoever may execute a trigger function may make a trigger with it, on a table of his own, also a temporary one. Those
-- that are `security definer` would then write what he likes into the feed, with the rights of the owner. So only the
-- owner may execute trigger functions. PostgreSQL checks that when a trigger is made, and not when it runs. Not only
-- public may have the right: default privileges may give it to other roles, too.

-- migrate:up
do $$
declare
  taken text;
begin
  for taken in
    select format('revoke all on function %s from %s', p.oid::regprocedure, coalesce(quote_ident(r.rolname), 'public'))
    from pg_class as c
    join pg_proc as p on p.pronamespace = c.relnamespace and p.proowner = c.relowner
    cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
    left join pg_roles as r on r.oid = a.grantee -- none: public
    where c.oid = 'movies'::regclass and p.prorettype = 'trigger'::regtype and a.grantee <> p.proowner
  loop
    execute taken;
  end loop;
end
$$;

-- migrate:down
do $$
declare
  given text;
begin
  for given in
    select format('grant execute on function %s to public', p.oid::regprocedure)
    from pg_class as c
    join pg_proc as p on p.pronamespace = c.relnamespace and p.proowner = c.relowner
    where c.oid = 'movies'::regclass and p.prorettype = 'trigger'::regtype
  loop
    execute given;
  end loop;
end
$$;
