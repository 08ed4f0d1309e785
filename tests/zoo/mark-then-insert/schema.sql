create table payment (payment_id text primary key, cents bigint not null, state text not null default 'new');
create table ledger (payment_id text not null, cents bigint not null);
insert into payment (payment_id, cents) values ('P-1', 500), ('P-2', 1250), ('P-3', 70);
