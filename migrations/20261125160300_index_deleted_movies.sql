-- Finds the deletion of a movie, to restore it. The other changes, which are most, have no entry.

-- migrate:up transaction:false
create index concurrently movie_changes_deleted on movie_changes (movie_id) where kind = 'deleted';

-- migrate:down
drop index movie_changes_deleted;
