create table booking (booking_id bigserial primary key, payment_id text not null unique, at timestamptz not null default now());
create table line (line_id uuid primary key default gen_random_uuid(), booking_id bigint not null references booking, cents bigint not null);
