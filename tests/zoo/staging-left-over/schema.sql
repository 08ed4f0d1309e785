create table ledger (payment_id text not null, cents bigint not null);

create table stage (payment_id text, account text, cents bigint);
