-- Corrections of a search that finds nothing (GET /v1/movies). The words of all titles are in title_words, as of the
-- last `python -m service refresh-words`. The first two queries may take 25 ms each; otherwise the response comes without
-- suggestions.

-- name: correct_words(title)
-- \set title '\'casablnca\''
-- set: transaction_read_only = on
-- set: statement_timeout = 25ms
-- Returns each word of the search, whether a title has it, and up to six corrections, the best first: words that more
-- movies have and that are the same without one letter each; then two words that were written as one.
with words as (
  select w.word, w.place, coalesce(t.movies, 0) as movies
  from string_to_table(translate(mark_signs(fold_letters(:title)), '-+', '  '), ' ') with ordinality as w (word, place)
  left join title_words as t on t.word = w.word
  where w.word not in ('', '*')
  order by w.place
  limit 10
)
select
  w.word,
  w.movies > 0 or w.word like '%*' as is_known,
  array(
    select t.word
    from title_words as t
    where near_words(t.word) && near_words(w.word) and t.movies > w.movies and w.word not like '%*'
    order by
      (left(t.word, 1) = left(w.word, 1))::integer + (right(t.word, 1) = right(w.word, 1))::integer
      + (select count(*) from unnest(near_words(t.word)) as n where n = any (near_words(w.word))) desc,
      t.movies desc,
      t.word
    limit 4
  )
  || array(
    select l.word || ' ' || r.word
    from generate_series(2, length(w.word) - 2) as n
    join title_words as l on l.word = left(w.word, n)
    join title_words as r on r.word = substr(w.word, n + 1)
    where w.movies = 0
    order by least(l.movies, r.movies) desc, n
    limit 2
  ) as corrections
from words as w
order by w.place;

-- name: keep_searches_that_find(searches)
-- \set searches '\'{casablanca,"the casablanca"}\''
-- set: transaction_read_only = on
-- set: statement_timeout = 25ms
-- set: enable_seqscan = off
-- Returns those that find a movie, in their order.
select s.title
from unnest(:searches::text[]) with ordinality as s (title, place)
where exists (select from movies as m where m.search @@ title_query(s.title))
order by s.place;

-- name: refresh_words(run)
-- \set run true
-- Returns the number of words. The function is in the migrations. It takes some 10 s for 2 million movies; requests go on.
-- With `run` = false, as the check sends it, it does nothing.
select refresh_title_words() as words
where :run::boolean;
