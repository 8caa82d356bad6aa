-- Roles that serve requests had more rights on some tables than they need, by default privileges such as those of
-- ops/roles.sql. They keep what the queries use: triggers write the feed with the rights of the owner, only the owner
-- refreshes the words of suggestions, and nobody writes the answers of the release before.
--
-- They may read tables that the owner creates later, such as a DBA's audit of changes, and no longer write them. A later
-- migration with a table that requests write grants that to the roles that may insert movies, as below.

-- migrate:up
do $$
declare
  grantee text;
begin
  for grantee in
    select distinct coalesce(quote_ident(r.rolname), 'public')
    from pg_class as c
    cross join aclexplode(c.relacl) as a
    left join pg_roles as r on r.oid = a.grantee -- none: public
    where c.oid = 'movies'::regclass and a.privilege_type = 'INSERT' and a.grantee <> c.relowner
  loop
    execute format(
      'revoke all on table movie_changes, movie_feed, title_words, idempotency_answers from %1$s;'
      'revoke all on sequence movie_changes_id_seq from %1$s;'
      'grant select on table movie_changes, movie_feed, title_words, idempotency_answers to %1$s;'
      'grant delete on table movie_changes to %1$s;'
      'grant update (cleared_to) on table movie_feed to %1$s;'
      'alter default privileges in schema %2$I revoke insert, update, delete on tables from %1$s',
      grantee, current_schema()
    );
  end loop;
end
$$;

-- migrate:down
-- Nothing: the release before needs no more rights.
