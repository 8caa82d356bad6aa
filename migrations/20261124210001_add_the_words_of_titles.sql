-- For suggestions: the words of the movies that were there before the triggers of the migration before this one. It reads
-- the table once (5 s for 2 million movies), while others go on writing.

-- migrate:up
select add_search_words();
analyze search_words;

-- migrate:down
-- Nothing: the migration before this one drops the words.
