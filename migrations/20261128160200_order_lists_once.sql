-- The orders of lists, for all queries of queries/listing.sql: `order by` with all columns of movie_order, those that end
-- with _down `desc`, and then the id. A sort that is not asked for is null, which PostgreSQL leaves out; so a list is read
-- along the index of its order.

-- migrate:up
create function movie_order(
  sort text, id bigint, title text, year integer, runtime integer, created_at timestamptz, updated_at timestamptz
) returns table (
  title_up text, number_up integer, time_up timestamptz, rank_up bigint,
  title_down text, number_down integer, time_down timestamptz, rank_down bigint, id_down bigint
)
  language sql stable parallel safe rows 1 as $$
select
  case sort when 'title' then title end,
  case sort when 'year' then year when 'runtime' then runtime end,
  case sort when 'created_at' then created_at when 'updated_at' then updated_at end,
  case sort when 'relevance' then search_rank(title, year) end,
  case sort when '-title' then title end,
  case sort when '-year' then year when '-runtime' then runtime end,
  case sort when '-created_at' then created_at when '-updated_at' then updated_at end,
  case sort when '-relevance' then search_rank(title, year) end,
  case when sort like '-%' then id end
$$;

comment on function movie_order(text, bigint, text, integer, integer, timestamptz, timestamptz) is
  'What a list is sorted by: each column in its direction, then the id. `sort` is as in the API: title, -year, relevance ...'
  ' Which movies come after one is in movie_follows.';

-- migrate:down
drop function movie_order(text, bigint, text, integer, integer, timestamptz, timestamptz);
