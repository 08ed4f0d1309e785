-- Open a transaction whose isolation does not depend on anybody's settings.
-- Lock: none.
-- Zero rows: always; it returns none.
begin isolation level read committed read write
