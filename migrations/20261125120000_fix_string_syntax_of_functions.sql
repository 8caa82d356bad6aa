-- These functions have literals with backslashes. Where standard_conforming_strings is off for a server, a database or a
-- role, as before PostgreSQL 9.1, they would find and store wrong words. Other functions have no such literals, and no
-- function depends on other settings: DateStyle, TimeZone, search_path, lc_*, quote_all_identifiers.

-- migrate:up
alter function title_entries(text) set standard_conforming_strings = on;
alter function title_query(text) set standard_conforming_strings = on;

-- migrate:down
alter function title_entries(text) reset standard_conforming_strings;
alter function title_query(text) reset standard_conforming_strings;
