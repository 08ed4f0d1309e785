// Note each payment by its key and add it to its balance, in one transaction.
const { readFileSync } = require("node:fs");
const { Client } = require("pg");

const payments = readFileSync("payments.csv", "utf8").trim().split("\n").slice(1).map((line) => line.split(","));

async function settle() {
  const client = new Client();
  client.on("error", () => process.exit(1));
  await client.connect();
  for (const [id, account, cents] of payments) {
    await client.query("begin");
    const noted = await client.query("insert into applied (payment_id) values ($1) on conflict do nothing", [id]);
    if (noted.rowCount !== 0) {
      await client.query("update account set cents = cents + $1 where account = $2", [cents, account]);
    }
    await client.query("commit");
  }
  await client.end();
}

settle().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
