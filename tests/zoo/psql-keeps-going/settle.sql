update account set cents = cents + 500
where account = 'ann' and not exists (select from applied where payment_id = 'P-1');
insert into applied (payment_id) values ('P-1') on conflict do nothing;
update account set cents = cents + 1250
where account = 'bob' and not exists (select from applied where payment_id = 'P-2');
insert into applied (payment_id) values ('P-2') on conflict do nothing;
