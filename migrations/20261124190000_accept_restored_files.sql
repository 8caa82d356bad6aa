-- The comments of six migrations were rewritten after deployments had applied them, so `migrate` reported five or six
-- edited files at each upgrade. These files are again as they were first applied. A database that has applied the
-- other text takes their checksums anew: the statements are the same. The table of dbmate has no checksums.

-- migrate:up
do $$
begin
  update schema_migrations
  set checksum = null
  where checksum in (
    '9471d1a9df69854e7e685f43c8f68e94c82e15fb8bab46c345aa8bfd676ac7b0', -- 20261122093000
    '784a965300838aa5cf87204481674e71ad69ce4d42ce493d51353bf43f86c18a', -- 20261122093100
    '02fa4623c5b1ba91c4425709d085aa0c2e0af8a45026f18ff598fc13d14535e0', -- 20261122100000
    'aae99e1ca9cde6f1997fd0ee93f6025480c6771764519c7ba92c697e6ff6743e', -- 20261122120000
    '6defe3790353299e39cc066b8f0e50e1b7c0c413730acbfcd6a12bd6fe0a46c0', -- 20261122200000
    'ab8c7b261a0854909007ba04171c840490c0d9f779d1af026a3fc4ecc40a417e' -- 20261123040000
  );
exception
  when undefined_column then null;
end
$$;

-- migrate:down
