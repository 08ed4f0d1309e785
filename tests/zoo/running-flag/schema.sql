create table ledger (payment_id text primary key, cents bigint not null);

create table job (name text primary key, running boolean not null);
insert into job (name, running) values ('settle', false);
