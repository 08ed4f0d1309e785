create temporary table payment (payment_id text, account text, cents bigint) on commit drop;
insert into payment values ('P-1', 'ann', 500), ('P-2', 'bob', 1250), ('P-3', 'cy', 70);
with noted as (
    insert into applied (payment_id) select payment_id from payment on conflict do nothing returning payment_id
)
update account set cents = account.cents + added.cents
from (select account, sum(cents) as cents from payment join noted using (payment_id) group by account) as added
where account.account = added.account;
