#!/bin/bash
# Change each balance, then note that it was done; what was noted before is left alone.

apply() {
    if [ "$(psql -XqAt -c "select count(*) from applied where payment_id = '$1'")" = 1 ]; then
        return
    fi
    psql -Xq -c "update account set cents = cents + $3 where account = '$2'"
    psql -Xq -c "insert into applied (payment_id) values ('$1')"
}

apply P-1 ann 500
apply P-2 bob 1250
exit 0
