-- Checks the genres of all existing movies. Clients can read and change movies meanwhile. This migration
-- fails only if somebody wrote a genre of more than 100 bytes while the previous migration ran. The hint of
-- the previous migration has a query that lists such genres.

-- migrate:up
alter table movies validate constraint movies_genres_at_most_100_bytes;

-- migrate:down
alter table movies drop constraint movies_genres_at_most_100_bytes;
alter table movies
  add constraint movies_genres_at_most_100_bytes check (
        octet_length(genres[1]) <= 100
    and octet_length(genres[2]) <= 100
    and octet_length(genres[3]) <= 100
    and octet_length(genres[4]) <= 100
    and octet_length(genres[5]) <= 100
  ) not valid;
