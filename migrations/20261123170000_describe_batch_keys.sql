-- idempotency_keys also has the keys of batches (POST /v1/movies/batch), with all movies of a batch as a JSON
-- array. Their keys begin with "batch" and a tab, which no key of a single movie contains. So the previous
-- release never reads such a row; it deletes the row when the key has expired.

-- migrate:up
comment on column idempotency_keys.key is
  'as it was sent; of a client with a token: its id, a tab, and the key. In front of the key of a batch are'
  ' "batch" and a tab; behind that of a movie of a lenient batch are a tab and its place';
comment on column idempotency_keys.response is
  'the movie, or the array of movies of a batch, as created; they may have changed since, or be gone';

-- migrate:down
-- Earlier migrations cannot read arrays when they are reverted. A repeated request of these keys would create
-- its movies again.
delete from idempotency_keys where jsonb_typeof(response) = 'array';

comment on column idempotency_keys.key is
  'as it was sent; of a client with a token: its id, a tab, and the key';
comment on column idempotency_keys.response is
  'the movie as it was created; it may have changed since, or be gone';
