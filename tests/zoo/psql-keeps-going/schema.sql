create table account (account text primary key, cents bigint not null);
insert into account (account, cents) values ('ann', 10000), ('bob', 20000), ('cy', 30000);
create table applied (payment_id text primary key);
