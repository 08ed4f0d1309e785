/* Book all payments in one transaction with libpq; a file says that all is done. */
#include <libpq-fe.h>
#include <stdio.h>
#include <unistd.h>

static const char *payments[][2] = {{"P-1", "500"}, {"P-2", "1250"}, {"P-3", "70"}};

int main(void) {
    FILE *done;
    PGconn *connection;
    int at;

    if (access("done.txt", F_OK) == 0)
        return 0;
    connection = PQconnectdb("");
    PQclear(PQexec(connection, "begin"));
    for (at = 0; at < 3; at++)
        PQclear(PQexecParams(connection,
                             "insert into ledger (payment_id, cents) values ($1, $2) on conflict do nothing",
                             2, NULL, payments[at], NULL, NULL, 0));
    PQclear(PQexec(connection, "commit"));
    done = fopen("done.txt", "w");
    if (done == NULL)
        return 1;
    fputs("all payments are booked\n", done);
    fclose(done);
    PQfinish(connection);
    return 0;
}
