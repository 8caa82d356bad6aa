-- What the service asks about movies. Requests that arrive together share one statement, so each
-- of these takes and returns many rows at once. The service binds the parameters as literals: to
-- try one in psql, set them first, as the line under each name does.

-- name: get_movies(ids)
-- \set ids '\'{1,2}\''
-- The movies with these ids; one that does not exist gives no row.
select m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
from movies as m
where m.id = any (:ids);

-- name: create_movies(movies)
-- \set movies '\'[{"position": 0, "title": "Moana", "year": 2016, "runtime": 107, "genres": ["animation"]}]\''
-- Each row comes back with the position that it came with: the id is drawn first, and ties the two.
with new as materialized (
  select
    nextval('movies_id_seq') as id,
    n.position, n.title, n.year, n.runtime, n.genres
  from jsonb_to_recordset(:movies)
    as n (position bigint, title text, year integer, runtime integer, genres text[])
),
created as (
  insert into movies (id, title, year, runtime, genres)
  overriding system value
  select n.id, n.title, n.year, n.runtime, n.genres
  from new as n
  returning id, title, year, runtime, genres, version, created_at, updated_at
)
select
  n.position,
  c.id, c.title, c.year, c.runtime, c.genres, c.version, c.created_at, c.updated_at
from created as c
join new as n on n.id = c.id;

-- name: update_movies(changes)
-- \set changes '\'[{"id": 1, "title": "Moana", "genres": ["animation", "adventure"], "versions": [1]}]\''
-- A field that is missing or null stays as it is. No id may stand in it twice. One that does not
-- exist gives no row. `locked`: somebody else holds the row's lock, so it is left alone; ask again.
-- To wait for it would hold up all others that share the statement.
-- What a change may depend on is looked at once the row is locked: that its version is one of
-- `versions` and none of `other_than`, and that nothing has happened since `unmodified_since`
-- (to the second). `held` is false for a movie that is left alone because of that.
with changes as materialized (
  select
    c.id, c.title, c.year, c.runtime, c.genres, c.versions, c.other_than, c.unmodified_since
  from jsonb_to_recordset(:changes)
    as c (
      id bigint, title text, year integer, runtime integer, genres text[],
      versions integer[], other_than integer[], unmodified_since timestamptz
    )
),
free as materialized (
  select m.id, m.version, m.updated_at
  from movies as m
  where m.id in (select c.id from changes as c)
  for update skip locked
),
updated as (
  update movies as m
  set
    title   = coalesce(c.title, m.title),
    year    = coalesce(c.year, m.year),
    runtime = coalesce(c.runtime, m.runtime),
    genres  = coalesce(c.genres, m.genres)
  from changes as c
  join free as f on f.id = c.id
  where m.id = f.id
    and (c.versions is null or f.version = any (c.versions))
    and (c.other_than is null or f.version <> all (c.other_than))
    and (c.unmodified_since is null or date_trunc('second', f.updated_at) <= c.unmodified_since)
  returning m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
)
select
  f.id is null as locked, u.id is not null as held,
  m.id, u.title, u.year, u.runtime, u.genres, u.version, u.created_at, u.updated_at
from changes as c
join movies as m on m.id = c.id
left join free as f on f.id = c.id
left join updated as u on u.id = c.id;

-- name: delete_movies(deletions)
-- \set deletions '\'[{"id": 1, "versions": [1, 2]}, {"id": 2}]\''
-- The movies that this deleted. One that does not exist, what a deletion may depend on, `held` and
-- `locked` are as in update_movies.
with deletions as materialized (
  select d.id, d.versions, d.other_than, d.unmodified_since
  from jsonb_to_recordset(:deletions)
    as d (id bigint, versions integer[], other_than integer[], unmodified_since timestamptz)
),
free as materialized (
  select m.id, m.version, m.updated_at
  from movies as m
  where m.id in (select d.id from deletions as d)
  for update skip locked
),
deleted as (
  delete from movies as m
  using deletions as d
  join free as f on f.id = d.id
  where m.id = f.id
    and (d.versions is null or f.version = any (d.versions))
    and (d.other_than is null or f.version <> all (d.other_than))
    and (d.unmodified_since is null or date_trunc('second', f.updated_at) <= d.unmodified_since)
  returning m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
)
select
  f.id is null as locked, x.id is not null as held,
  m.id, x.title, x.year, x.runtime, x.genres, x.version, x.created_at, x.updated_at
from deletions as d
join movies as m on m.id = d.id
left join free as f on f.id = d.id
left join deleted as x on x.id = d.id;

-- name: list_movies(title, genres, year_from, year_to, runtime_from, runtime_to, sort, after, after_id, skip, size)
-- \set title '\'amelie\'' \set genres null \set year_from 1990 \set year_to 1999
-- \set runtime_from null \set runtime_to null \set sort '\'-year\''
-- \set after null \set after_id null \set skip 0 \set size 20
-- A page of the movies that pass all filters; a filter that is null passes every movie. As the
-- parameters are literals, the planner drops what does not apply: each filter and each order gets
-- a plan of its own, and walks along an index of that order from the movie `after_id` on, whose
-- sort key is `after` (as text), or null for `sort` id.
-- Where a cursor says how many there are, the service asks for the page as it stands here. Else it
-- asks for the planner's estimate first, by `explain`. Of many, it counts those in a sample of the
-- table's blocks, within a `with movies as`. Unless that proves that more than 10,000 pass, it sends
-- this without order and key, within a `with` of 10,001 movies at most (20,001 for a deep page): if
-- that is all, their page is sorted out of it. Of more it asks for the page as it stands here.
select m.id, m.title, m.year, m.runtime, m.genres, m.version, m.created_at, m.updated_at
from movies as m
where (:title is null or m.search @@ title_query(:title))
  and (:genres is null or m.search @@ genres_query(:genres))
  and (:year_from is null or m.year >= :year_from)
  and (:year_to is null or m.year <= :year_to)
  and (:runtime_from is null or m.runtime >= :runtime_from)
  and (:runtime_to is null or m.runtime <= :runtime_to)
  and (:after_id is null or case :sort
    when 'id' then m.id > :after_id
    when '-id' then m.id < :after_id
    when 'title' then (m.title, m.id) > (:after, :after_id)
    when '-title' then (m.title, m.id) < (:after, :after_id)
    when 'year' then (m.year, m.id) > (:after::text::integer, :after_id)
    when '-year' then (m.year, m.id) < (:after::text::integer, :after_id)
    when 'runtime' then (m.runtime, m.id) > (:after::text::integer, :after_id)
    when '-runtime' then (m.runtime, m.id) < (:after::text::integer, :after_id)
  end)
order by
  case :sort when 'title' then m.title end,
  case :sort when '-title' then m.title end desc,
  case :sort when 'year' then m.year when 'runtime' then m.runtime end,
  case :sort when '-year' then m.year when '-runtime' then m.runtime end desc,
  case when :sort in ('-id', '-title', '-year', '-runtime') then m.id end desc,
  case when :sort is not null then m.id end
limit :size offset :skip;
