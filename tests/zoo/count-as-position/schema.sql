create table ledger (payment_id text not null, cents bigint not null);
