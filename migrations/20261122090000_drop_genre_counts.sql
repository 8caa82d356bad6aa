-- Genres are counted when a client asks (queries/genres.sql), so the tables of the background count
-- go. While this release goes out, processes of the former version fail to answer GET /v1/genres.

-- migrate:up
drop table genre_counting;
drop table genre_counts;

-- migrate:down
create table genre_counts (
  genre  text   primary key,
  movies bigint not null
);

create table genre_counting (
  one        boolean primary key default true check (one),
  counted_at timestamptz,
  looked_at  timestamptz,
  genres     bigint not null default 0,
  mark       text
);

comment on column genre_counting.counted_at is 'when movies was last read';
comment on column genre_counting.looked_at is 'when somebody last looked whether movies has changed';
comment on column genre_counting.genres is 'how many there are; genre_counts has the most frequent';
comment on column genre_counting.mark is
  'get_movies_mark() before movies was last read; set it to null to have all counted anew';
