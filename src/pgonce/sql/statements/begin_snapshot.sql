-- Open a transaction whose statements all see the same committed state: for checks that compare tables with each other.
-- Lock: none.
-- Zero rows: always; it returns none.
begin isolation level repeatable read read write
