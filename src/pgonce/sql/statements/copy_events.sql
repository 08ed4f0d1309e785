-- Claim new events by inserting their keys in key order, encoded by the client; statuses are those they end with.
-- Lock: the inserted keys; waits for another transaction that inserted one of them, and fails if that commits.
-- Zero rows: always; it returns none. Either all rows are inserted, or the statement fails.
copy pgonce.event (
    run_id, epoch, attempts, adopted, job, source, event_id, status, amount_cents, line, payload, error
) from stdin (format binary)
