create table payment (payment_id text primary key, day date not null, cents bigint not null);
create table daily (day date not null, payments bigint not null, cents bigint not null);
insert into payment values ('P-1', '2026-11-29', 500), ('P-2', '2026-11-29', 1250), ('P-3', '2026-11-30', 70);
insert into daily values ('2026-11-29', 1, 500);
