-- Record an applied migration, in the transaction that applied it.
-- Lock: the inserted key.
-- Zero rows: always; it returns none.
insert into pgonce.migration (version, name, sha256)
values (%(version)s::integer, %(name)s::text, %(sha256)s::text)
