-- replaces: 20261125100000..20261128173200 (the last version before 1.2.0)
--
-- Finds the changes of a movie. Of one movie, ids follow the order of its changes, because each is given while its row is
-- locked; transactions do not, and versions may begin again.

-- migrate:up transaction:false
create index concurrently movie_changes_of_movie on movie_changes (movie_id, id);

-- migrate:down
drop index movie_changes_of_movie;
