create table ledger (payment_id text primary key, cents bigint not null);
