insert into applied (payment_id) values ('P-1'), ('P-2'), ('P-3');
update account set cents = cents + 500 where account = 'ann';
update account set cents = cents + 1250 where account = 'bob';
update account set cents = cents + 70 where account = 'cy';
