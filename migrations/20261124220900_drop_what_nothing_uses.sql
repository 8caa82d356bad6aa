-- For databases of release 1.1.0, where the files before this one have not run: drops what nothing uses, and describes what
-- is there, as those files do. In a new database, only the last two descriptions are new.
--
-- For databases that 1.1.0 has never seen: records its migrations, so that it finds them applied. Otherwise nobody could
-- undo this release there.

-- migrate:up
-- Fails in a database where neither the files before this one nor those of 1.1.0 have run.
select from movies, movie_changes, movie_feed, idempotency_keys, clients, search_words limit 0;

drop table if exists title_words;
drop function if exists refresh_title_words();
drop function if exists near_words(text);

insert into schema_migrations (version)
select unnest(array[
  '20260105090000', '20260105090100', '20261120100000', '20261120100001', '20261120100002', '20261120100003',
  '20261120100004', '20261120110000', '20261120120000', '20261120130000', '20261122090000', '20261122090100',
  '20261122093000', '20261122093100', '20261122100000', '20261122120000', '20261122200000', '20261123040000',
  '20261123100000', '20261123100100', '20261123100200', '20261123110000', '20261123120000', '20261123120001',
  '20261123130000', '20261123130001', '20261123130002', '20261123140000', '20261123150000', '20261123160000',
  '20261123160001', '20261123170000', '20261124090000', '20261124100000', '20261124100100', '20261124100200',
  '20261124190000', '20261124190100', '20261124200000', '20261124210000', '20261124210001'
])
on conflict do nothing;

do $$
declare
  object text;
  description text;
begin
  for object, description in
    values
      ('function fold_letters(text)',
        'The text in small letters without accents and other marks. Only `lower` depends on the locale: in the locale C of'
        ' libc, it knows a to z alone.'),
      ('function mark_signs(text)',
        'Folded text with `-` for each sign but `*`. In scripts without blanks (Thai, Lao, Burmese, Khmer, Kana, Han), each pair'
        ' of neighbouring letters is a word, so that a title is found by any part: 千と千尋 becomes 千と と千 千尋 尋+. The last'
        ' letter is for searches of one letter, which become 尋*.'),
      ('function title_entries(text)',
        'The words of a title whose signs are marked: the parts between the signs, and what they make together. A word is cut'
        ' after 100 letters, here and in a search: an entry of the index has a limit.'),
      ('function genre_entry(text)',
        'A genre as the column `search` of movies has it. It begins with a blank, as no word of a title does.'),
      ('function movie_search(text, text[])',
        'What a movie is found by: the column `search` of movies. The rules of movies are checked later, so there may be text'
        ' that they refuse: it is cut.'),
      ('function quote_lexeme(text)', 'A word as a tsquery has it.'),
      ('function number_spellings(text, boolean)',
        'The spellings of a number from 1 to 20, or null. A first I, V or X is a letter: `rocky v`, not `v for vendetta`.'),
      ('function title_query(text)',
        'The filter `title` of lists: all the words, in any order; `cas*` is any word that begins so. A word is also found'
        ' together with a neighbour (`spider man` finds Spiderman), and words that signs join as one (`s.w.a.t.` finds SWAT). Of'
        ' a longer search, the first ten words count. Null, which finds nothing, if there is no word in it. A number from 1 to 20'
        ' is found in every spelling, unless it is the only word: `seven` would list 7:19 before Seven.'),
      ('function genres_query(text[])',
        'The filter `genres` of lists: all of them, regardless of case, accents and surrounding blanks.'),
      ('function genres_any_query(text[])', 'The filter `genres_any` of lists: at least one of them.'),
      ('function search_rank(text, bigint)',
        'Sorts movies by relevance, ascending: the shortest title (in characters) first, then the newer year. One character'
        ' counts more than the distance of any two years. The service computes the same value for cursors.'),
      ('table movies',
        'The catalogue. Anybody may write it: constraints and triggers keep the rules, versions, the feed and the words.'),
      ('column movies.id', 'Clients know a movie by it: it never changes, and no other movie gets it again.'),
      ('column movies.title', 'As clients sent it: not blank, at most 500 bytes of UTF-8.'),
      ('column movies.year', 'Of the release, from 1888; the service also refuses years in the future.'),
      ('column movies.runtime', 'In minutes, at least 1; clients see `107 mins`.'),
      ('column movies.genres', 'One to five different ones, of 1 to 100 bytes each, in the order that clients sent.'),
      ('column movies.version',
        'The trigger zzz_movies_keep_version raises it whenever a movie changes; the ETag has it.'),
      ('column movies.created_at', 'When the transaction began that created the movie.'),
      ('column movies.updated_at', 'When the transaction of the last change began; a trigger keeps it.'),
      ('column movies.search',
        'The words of the title and the genres: `search @@ title_query(''spider man'')` finds movies.'),
      ('index movies_search', 'Filters title, genres and genres_any of lists, and suggestions.'),
      ('index movies_title', 'Order by title of lists.'),
      ('index movies_year', 'Order and filter by year of lists; also counts movies of some years and runtimes.'),
      ('index movies_runtime', 'Order and filter by runtime of lists; also counts movies of some runtimes and years.'),
      ('index movies_rank', 'Order by relevance of lists whose search matches many movies.'),
      ('index movies_created_at', 'Order and filter by created_at of lists.'),
      ('index movies_updated_at', 'Order and filter by updated_at of lists.'),
      ('function movies_keep_version()',
        'Raises version and updated_at if any column changes, and refuses a change of id.'),
      ('trigger zzz_movies_keep_version on movies',
        'Keeps version, updated_at and id. Triggers of one kind run in the order of their names: this one must be the last,'
        ' otherwise a change by a trigger behind it has no version, no ETag and no place in the feed.'),
      ('function list_numbers(int8multirange)',
        'The numbers of these ranges; null if the first and the last one are more than 1,000 apart. As `= any`, PostgreSQL finds'
        ' them by an index and knows about how many movies have them: `year=1950,2020` reads no movies of the years between.'),
      ('function movie_matches',
        'Whether a list has the movie. A filter that is null matches every movie. The genres are separated by commas. The years'
        ' are from year_from to year_to, and of these only `years`, if it is not null; the same for runtimes.'),
      ('function movie_follows',
        'Whether a movie comes after the movie that has the id after_id and, as text, the sort value `after`. All follow if these'
        ' are null. `sort` is as in the API: title, -year, relevance ...'),
      ('table search_words',
        'The words that titles have or had, for suggestions. Triggers of movies and imports add them; a word without movies does'
        ' no harm. docs/dbas.md says how to collect them anew.'),
      ('column search_words.word', 'As the column `search` of movies has it.'),
      ('index search_words_word', 'Whether a word is there. A word may be there twice.'),
      ('index search_words_start', 'Corrections of a word whose first half is right.'),
      ('index search_words_end', 'Corrections of a word whose last half is right.'),
      ('function is_plain_word(text)',
        'Whether a misspelt word may be corrected to it: it has at most 30 characters, all of alphabets or digits. A Korean'
        ' syllable is folded to its letters. The other words are signs, pairs of scripts without blanks, and genres.'),
      ('function add_search_words(text)',
        'Adds the words that search_words lacks, and returns how many. `movies`: a query of the column `search`.'),
      ('function movies_add_words()',
        'Adds the words of created and changed movies to search_words. An import sets catalogue.adds_words_later and adds its'
        ' words once.'),
      ('trigger movies_add_created_words on movies', 'Keeps search_words, for suggestions.'),
      ('trigger movies_add_updated_words on movies', 'Keeps search_words, for suggestions.'),
      ('function correct_word(text, boolean)',
        'Up to 20 words of titles that differ from this one by one letter (missing, added, wrong, or changed places with the next'
        ' one), the most similar first; with is_prefix, also longer ones that begin with such a word. The mistake is in one half'
        ' of the word, so the other half finds them along an index.'),
      ('function closest_movies',
        'The movies that come closest to a search, and how close: from 0.25 to 1, which has all of its words. A word may also be a number in another'
        ' spelling, the start of a word if it is the last one or has a `*`, a corrected word, or two words that were written as'
        ' one; two neighbours may be one word. Words may be missing, and the rarer one weighs more. A year only counts beside'
        ' another word. The other parameters are filters, as of movie_matches.'),
      ('table movie_changes',
        'The changes of movies, for GET /v1/changes; triggers of movies write them, and the service clears old ones.'),
      ('column movie_changes.transaction', 'The one that made the change; transactions are sent in this order.'),
      ('column movie_changes.id', 'The order of the changes of a transaction.'),
      ('column movie_changes.movie_id', 'Of the movie, which may be gone.'),
      ('column movie_changes.changed_at', 'When the transaction began.'),
      ('column movie_changes.version', 'Of the movie after the change; of a deleted movie, its last one.'),
      ('column movie_changes.kind', 'created, updated or deleted.'),
      ('table movie_feed', 'The state of movie_changes, in one row.'),
      ('column movie_feed.is_single', 'Always true, so that there is no second row.'),
      ('column movie_feed.id', 'Cursors belong to it: a new id makes all clients start again.'),
      ('column movie_feed.is_on', 'False: triggers write no changes (switch_movie_feed).'),
      ('column movie_feed.cleared_to', 'Changes of this transaction and of earlier ones may have been cleared.'),
      ('function movies_record_created()',
        'Writes a row of movie_changes for each movie that a statement has created.'),
      ('function movies_record_updated()',
        'Writes a row of movie_changes for each movie that a statement has given a new version.'),
      ('function movies_record_deleted()',
        'Writes a row of movie_changes for each movie that a statement has deleted.'),
      ('function movies_record_truncated()', 'Writes a deletion of each movie before `truncate`.'),
      ('trigger movies_record_created on movies', 'Writes the feed of changes; switch_movie_feed disables it.'),
      ('trigger movies_record_updated on movies', 'Writes the feed of changes; switch_movie_feed disables it.'),
      ('trigger movies_record_deleted on movies', 'Writes the feed of changes; switch_movie_feed disables it.'),
      ('trigger movies_record_truncated on movies', 'Writes the feed of changes; switch_movie_feed disables it.'),
      ('function switch_movie_feed(boolean)',
        'Switches the feed on or off, and returns whether it was the other way before; `migrate` calls it, as [changes] keep_days'
        ' says. Off, it costs nothing. On again, it begins anew: all clients start again.'),
      ('table idempotency_keys', 'The Idempotency-Key of each create that had one, with its response, for 24 hours.'),
      ('column idempotency_keys.key',
        'As it was sent; of a client with a token: its id, a tab, and the key. In front of the key of a batch are "batch" and a'
        ' tab; behind that of a movie of a lenient batch are a tab and its place.'),
      ('column idempotency_keys.fingerprint', 'SHA-256 of the fields that were sent, in hex.'),
      ('column idempotency_keys.expires_at',
        'From then on the key counts as unused; its default says how long keys are kept.'),
      ('column idempotency_keys.movie_id', 'Not used: the release before reads it.'),
      ('column idempotency_keys.created_at', 'Not used: the release before reads it.'),
      ('column idempotency_keys.response',
        'The movie, or the array of movies of a batch, as created; they may have changed since, or be gone.'),
      ('index idempotency_keys_expires_at', 'The service clears keys that have expired.'),
      ('table idempotency_answers', 'Not used: the release before reads it, and finds it empty.'),
      ('table clients', 'The clients that use the API with a token (docs/dbas.md).'),
      ('column clients.id', 'A part of the token.'),
      ('column clients.name', 'For people; it may be changed at any time.'),
      ('column clients.token_hash', 'SHA-256 of the whole token, in hex.'),
      ('column clients.scopes',
        'read; write, which includes read; admin, which includes write (no route of /v1 needs it).'),
      ('column clients.expires_at', 'From then on its tokens are refused; null: never.'),
      ('column clients.revoked_at', 'From then on its tokens are refused; null: not revoked.'),
      ('column clients.last_used_on', 'A day in UTC; null: never.'),
      ('column clients.created_at', 'When the client was added.'),
      ('column clients.previous_token_hash',
        'Of the token before the last rotation, which works until previous_expires_at.'),
      ('column clients.previous_expires_at',
        'Until then the token before the last rotation works; null: there is none.'),
      ('function movies_limit_affected()',
        'Refuses a statement that changes more rows than catalogue.max_affected, which the service sets for each of its writes.'
        ' Where it is not set, as in psql, nothing is limited. What a trigger changes does not count; what a cascade within the'
        ' table deletes does.'),
      ('trigger movies_limit_inserted on movies', 'Refuses a query that creates more movies than were requested.'),
      ('trigger movies_limit_updated on movies', 'Refuses a query that changes more movies than were requested.'),
      ('trigger movies_limit_deleted on movies', 'Refuses a query that deletes more movies than were requested.'),
      ('table schema_migrations', 'The migrations that were applied, also those of release 1.1.0, which the first files sum up.'),
      ('table alembic_version', 'The newest migration, for alembic, which runs them. It decides nothing: schema_migrations does.')
  loop
    begin
      execute format('comment on %s is %L', object, description);
    exception
      -- A DBA does without it, or dbmate runs this file, so that there is no alembic_version.
      when undefined_table or undefined_object or undefined_function or undefined_column or ambiguous_function then null;
    end;
  end loop;
end
$$;

-- migrate:down
-- The release before runs on this schema, and does not use what was dropped.
comment on table schema_migrations is null;
do $$
begin
  if to_regclass('alembic_version') is not null then
    comment on table alembic_version is null;
  end if;
end
$$;
