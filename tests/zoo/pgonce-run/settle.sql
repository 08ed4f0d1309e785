update public.account as a set cents = a.cents + c.cents
from (select account, sum(amount_cents) as cents from chunk group by account) as c
where a.account = c.account;
