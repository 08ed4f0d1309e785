-- Check every deferred constraint now: a rehearsal is rolled back, and would not get to the checks at COMMIT.
-- Lock: none of its own.
-- Zero rows: always; it returns none.
set constraints all immediate
