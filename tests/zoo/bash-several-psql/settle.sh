#!/bin/bash
# Apply payments that were not applied before: look, change the balance, note it.
set -euo pipefail

apply() {
    if [ "$(psql -XqAt -c "select count(*) from applied where payment_id = '$1'")" = 1 ]; then
        return
    fi
    psql -Xq -c "update account set cents = cents + $3 where account = '$2'"
    psql -Xq -c "insert into applied (payment_id) values ('$1')"
}

apply P-1 ann 500
apply P-2 bob 1250
