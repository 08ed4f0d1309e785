-- The tables of pgonce. `event` and `effect` are public and stable; the others may change with a migration.

create table pgonce.migration (
    version integer not null,
    name text not null,
    sha256 text not null,
    applied_at timestamptz not null default clock_timestamp(),
    constraint migration_pkey primary key (version)
);

create table pgonce.job (
    job text collate "C" not null,
    version integer not null,
    attempt_budget integer not null default 9,
    created_at timestamptz not null default clock_timestamp(),
    constraint job_pkey primary key (job),
    constraint job_name_size check (octet_length(job) between 1 and 128),
    constraint job_budget_positive check (attempt_budget > 0)
);

-- What a job means by an event: every version that was ever in force, with who changed it and why.
create table pgonce.definition (
    job text collate "C" not null,
    version integer not null,
    spec jsonb not null,
    who text not null,
    why text not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint definition_pkey primary key (job, version),
    constraint definition_job_fkey foreign key (job) references pgonce.job (job)
);

-- A job over one content. `epoch` is the fencing token of the start that owns it.
create table pgonce.run (
    run_id bigint generated always as identity,
    job text collate "C" not null,
    version integer not null,
    kind text not null,
    source text collate "C" not null,
    digest text not null,
    reading jsonb not null,
    input_bytes bigint not null,
    epoch integer not null default 0,
    finished_at timestamptz,
    outcome jsonb,
    touched boolean not null default false,
    created_at timestamptz not null default clock_timestamp(),
    constraint run_pkey primary key (run_id),
    constraint run_identity_key unique (digest, job, kind, source, version, reading),
    constraint run_definition_fkey foreign key (job, version) references pgonce.definition (job, version),
    constraint run_kind_known check (kind in ('apply', 'adopt'))
);

-- One start of a run: who owns it, up to where its input is settled, and what its replayed rows were.
-- `position`, `lines` and `digest` are the position; `chunks` counts its moves and is what an in-doubt commit is
-- resolved by. Only the newest start of a run may move, and only while `ended_at` is null.
create table pgonce.start (
    run_id bigint not null,
    epoch integer not null,
    token uuid not null default gen_random_uuid(),
    replay boolean not null,
    checkpoint text not null,
    input_name text not null,
    owner text not null,
    backend_pid integer,
    backend_start timestamptz,
    position bigint not null,
    lines bigint not null,
    digest text not null,
    chunks bigint not null default 0,
    rows_read bigint not null default 0,
    cents_read numeric not null default 0,
    already bigint not null default 0,
    already_cents numeric not null default 0,
    failed_again bigint not null default 0,
    failed_again_cents numeric not null default 0,
    pending_again bigint not null default 0,
    pending_again_cents numeric not null default 0,
    late bigint not null default 0,
    late_cents numeric not null default 0,
    started_at timestamptz not null default clock_timestamp(),
    moved_at timestamptz not null default clock_timestamp(),
    ended_at timestamptz,
    ended_how text,
    constraint start_pkey primary key (run_id, epoch),
    constraint start_run_fkey foreign key (run_id) references pgonce.run (run_id)
);

-- `granted` are attempts beyond the job's budget, granted on record; null, which takes no room, where nobody did.
create table pgonce.event (
    amount_cents bigint not null,
    run_id bigint not null,
    line bigint not null,
    recorded_at timestamptz not null default clock_timestamp(),
    epoch integer not null,
    attempts integer not null default 0,
    adopted boolean not null default false,
    job text collate "C" not null,
    source text collate "C" not null,
    event_id text collate "C" not null,
    status text collate "C" not null,
    payload text collate "C",
    error text,
    fingerprint bytea,
    granted integer,
    constraint event_pkey primary key (job, source, event_id),
    constraint event_status_known check (status in ('pending', 'completed', 'failed', 'pruned')),
    constraint event_payload_kept check (payload is not null or status = 'pruned'),
    constraint event_fingerprint_kept check (fingerprint is not null or status <> 'pruned'),
    constraint event_adopted_completed check (not adopted or status in ('completed', 'pruned')),
    constraint event_granted_positive check (granted > 0),
    constraint event_id_size check (octet_length(event_id) between 1 and 512),
    constraint event_source_size check (octet_length(source) <= 512)
);

-- Which events belong to a run, without a cost for the insert: runs append, so a block range says it.
create index event_run_idx on pgonce.event using brin (run_id);
create index event_open_idx on pgonce.event (job, run_id) where status in ('pending', 'failed');

create table pgonce.effect (
    amount_cents bigint not null,
    job text collate "C" not null,
    source text collate "C" not null,
    event_id text collate "C" not null,
    constraint effect_pkey primary key (job, source, event_id),
    constraint effect_event_fkey foreign key (job, source, event_id)
        references pgonce.event (job, source, event_id),
    constraint effect_amount_not_negative check (amount_cents >= 0)
);

-- What is kept of a row that was rejected or that conflicts with the stored event.
create table pgonce.finding (
    run_id bigint not null,
    line bigint not null,
    epoch integer not null,
    kind text collate "C" not null,
    source text collate "C",
    event_id text collate "C",
    amount_cents bigint,
    reason text not null,
    raw bytea not null,
    recorded_at timestamptz not null default clock_timestamp(),
    constraint finding_pkey primary key (run_id, line),
    constraint finding_kind_known check (kind in ('rejected', 'conflict')),
    constraint finding_run_fkey foreign key (run_id) references pgonce.run (run_id)
);

-- What became of an event after it was first stored: applied later by a start, reopened, amended or granted more attempts
-- (how many) by an operator; by whom and why, and what stood there before.
create table pgonce.event_history (
    job text collate "C" not null,
    source text collate "C" not null,
    event_id text collate "C" not null,
    step integer not null,
    action text not null,
    old_status text not null,
    old_amount_cents bigint not null,
    old_payload text collate "C",
    old_error text,
    old_attempts integer not null,
    who text not null,
    why text not null,
    run_id bigint,
    epoch integer,
    granted integer,
    recorded_at timestamptz not null default clock_timestamp(),
    constraint event_history_pkey primary key (job, source, event_id, step),
    constraint event_history_event_fkey foreign key (job, source, event_id)
        references pgonce.event (job, source, event_id),
    constraint event_history_applied_by check ((action = 'applied') = (run_id is not null and epoch is not null)),
    constraint event_history_granted_much check ((action = 'granted') = (granted is not null and granted > 0)),
    constraint event_history_action_known check (action in ('applied', 'reopened', 'amended', 'granted'))
);

-- Guards: a second wall behind the design. An event is never deleted, nor renamed; what is completed keeps its amount
-- and payload (prune may drop the payload, with its fingerprint kept); an effect never changes.
create function pgonce.refuse_change() returns trigger
language plpgsql as $body$
begin
    raise exception using
        errcode = '0A000',
        message = format('pgonce: %s of %I.%I is refused', lower(tg_op), tg_table_schema, tg_table_name),
        detail = 'Events are the memory of what was applied, effects are the ledger; neither is deleted or rewritten.',
        hint = 'Book a compensating event, or use "pgonce events amend" on an event that failed.';
end
$body$;

create trigger event_keep before delete or truncate on pgonce.event
    for each statement execute function pgonce.refuse_change();

create trigger event_final before update on pgonce.event
    for each row when (
        (old.job, old.source, old.event_id) is distinct from (new.job, new.source, new.event_id)
        or old.status in ('completed', 'pruned') and (
            old.amount_cents is distinct from new.amount_cents
            or old.adopted is distinct from new.adopted
            or new.status not in ('completed', 'pruned')
            or new.status = 'completed' and (old.status = 'pruned' or old.payload is distinct from new.payload)
            or old.status = 'pruned' and old.fingerprint is distinct from new.fingerprint
        )
    ) execute function pgonce.refuse_change();

create trigger effect_keep before delete or truncate or update on pgonce.effect
    for each statement execute function pgonce.refuse_change();

alter table pgonce.event enable always trigger event_keep;
alter table pgonce.event enable always trigger event_final;
alter table pgonce.effect enable always trigger effect_keep;
