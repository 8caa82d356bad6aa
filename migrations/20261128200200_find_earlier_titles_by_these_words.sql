-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- Computes the words of earlier rows, 1,000 rows at a time, each time in a transaction of its own: no request waits
-- for longer than that. It may be stopped and run again. No version is raised, as nothing of a movie changes. Most rows
-- have the words already: 2 million movies take half a minute. Until then, some searches miss movies with such signs.
--
-- Then it checks the titles and genres of all movies, which can be read and changed meanwhile. That fails only if a
-- blank one was written while the migration before was running.

-- migrate:up transaction:false
do $$
declare
  rows bigint := (select greatest(reltuples, 1) from pg_class where oid = 'movies'::regclass);
  seen bigint := 0;
  last_id bigint;
  ids bigint[];
begin
  -- Wait for the writes that began before the migration above: they store the words of before, and the loop would not
  -- see their rows.
  lock table movies in share row exclusive mode;
  commit;
  loop
    -- `migrate` prints it, and pg_stat_activity shows it.
    if seen % 100000 = 0 then
      perform set_config(
        'application_name', format('progress: %s of about %s movies', seen, greatest(rows, seen)), false
      );
    end if;
    ids := array(
      select id from movies where last_id is null or id > last_id order by id limit 1000
    );
    exit when ids = '{}';
    update movies set title = title where id = any (ids) and search is distinct from movie_search(title, genres);
    commit;
    last_id := ids[array_upper(ids, 1)];
    seen := seen + array_length(ids, 1);
  end loop;
  alter table movies validate constraint movies_title_not_blank, validate constraint movies_genres_not_empty;
end
$$;

-- migrate:down
do $$ begin raise exception 'cannot be reverted: the release before runs on this schema'; end $$;
