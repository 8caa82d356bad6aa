-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- Sort rules come from libraries of the operating system (ICU, glibc). If an upgrade changes them, indexes of text are no
-- longer in order, and lists sorted by title have movies twice or not at all.

-- migrate:up
create function find_changed_collation()
returns table (actual text, recorded text)
language plpgsql
stable
as $$
begin
  -- PostgreSQL 14 records no version for the collation of a database.
  if current_setting('server_version_num')::integer >= 150000 then
    return query
    select pg_database_collation_actual_version(d.oid), d.datcollversion
    from pg_database as d
    where d.datname = current_database()
      and d.datcollversion <> pg_database_collation_actual_version(d.oid);
  end if;
end
$$;

comment on function find_changed_collation() is
  'A row if the sort rules of the database have changed since its indexes were sorted; get_schema_faults says what to do.';

-- migrate:down
drop function find_changed_collation();
