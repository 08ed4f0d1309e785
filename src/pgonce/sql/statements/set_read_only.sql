-- Let the server refuse every write of the open transaction.
-- Lock: none.
-- Zero rows: never.
select set_config('transaction_read_only', 'on', true)
