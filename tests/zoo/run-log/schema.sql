create table ledger (payment_id text primary key, cents bigint not null);

create table run_log (run_id bigint generated always as identity primary key, begun timestamptz not null default clock_timestamp(), booked integer);
