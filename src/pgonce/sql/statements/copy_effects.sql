-- Write the effects of events that were claimed in this transaction, in key order, encoded by the client.
-- Lock: the inserted keys.
-- Zero rows: always; it returns none. Either all rows are inserted, or the statement fails.
copy pgonce.effect (job, source, event_id, amount_cents) from stdin (format binary)
