CREATE TABLE alerts (
    id TEXT NOT NULL,
    sink TEXT NOT NULL,
    type TEXT NOT NULL,
    job TEXT,
    body TEXT NOT NULL,
    queued_unix_s FLOAT NOT NULL,
    state TEXT NOT NULL,
    tries INTEGER NOT NULL,
    next_unix_s FLOAT,
    tried_unix_s FLOAT,
    error TEXT,
    CONSTRAINT pk_alerts PRIMARY KEY (id)
);
CREATE TABLE attempts (
    job TEXT NOT NULL,
    number INTEGER NOT NULL,
    launched_unix_s FLOAT,
    ended_unix_s FLOAT,
    folder TEXT,
    resume_from TEXT,
    resume_epoch INTEGER,
    resume_step INTEGER,
    reason TEXT,
    exit_code INTEGER,
    exit_signal INTEGER,
    error TEXT,
    host_lost TEXT,
    max_rss_bytes INTEGER,
    last_step INTEGER,
    last_epoch INTEGER,
    cursors JSON,
    lost_records INTEGER,
    output_bytes INTEGER,
    agent_log_bytes INTEGER,
    CONSTRAINT pk_attempts PRIMARY KEY (job, number)
);
CREATE TABLE checkpoints (
    job TEXT NOT NULL,
    path TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    modified_ns INTEGER NOT NULL,
    inode INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    epoch INTEGER,
    step INTEGER,
    verdict TEXT,
    reason TEXT,
    first_seen_unix_s FLOAT NOT NULL,
    judged_unix_s FLOAT,
    kind TEXT,
    source TEXT,
    fitness FLOAT,
    kept_by TEXT,
    CONSTRAINT pk_checkpoints PRIMARY KEY (job, path, size_bytes, modified_ns, inode)
);
CREATE TABLE decisions (
    id INTEGER NOT NULL,
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    at_unix_s FLOAT NOT NULL,
    kind TEXT NOT NULL,
    reason TEXT,
    rule TEXT,
    body TEXT NOT NULL,
    CONSTRAINT pk_decisions PRIMARY KEY (id)
);
CREATE TABLE events (
    id INTEGER NOT NULL,
    at_unix_s FLOAT NOT NULL,
    kind TEXT NOT NULL,
    job TEXT,
    attempt INTEGER,
    body TEXT NOT NULL,
    CONSTRAINT pk_events PRIMARY KEY (id)
);
CREATE TABLE flags (
    id INTEGER NOT NULL,
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    at_unix_s FLOAT NOT NULL,
    rule TEXT NOT NULL,
    severity TEXT NOT NULL,
    subject TEXT,
    fault TEXT,
    message TEXT NOT NULL,
    since_unix_s FLOAT,
    since_step INTEGER,
    can_save BOOLEAN,
    CONSTRAINT pk_flags PRIMARY KEY (id)
);
CREATE TABLE gpu_samples (
    at_unix_s FLOAT NOT NULL,
    gpu TEXT NOT NULL,
    source TEXT NOT NULL,
    gpu_busy_percent FLOAT,
    memory_busy_percent FLOAT,
    vram_used_bytes INTEGER,
    gtt_used_bytes INTEGER,
    edge_c FLOAT,
    junction_c FLOAT,
    memory_c FLOAT,
    power_w FLOAT,
    power_cap_w FLOAT,
    fan_rpm INTEGER,
    sclk_hz INTEGER,
    mclk_hz INTEGER,
    runtime_status TEXT,
    CONSTRAINT pk_gpu_samples PRIMARY KEY (at_unix_s, gpu, source)
)
 WITHOUT ROWID;
CREATE TABLE gpu_tiers (
    width_s INTEGER NOT NULL,
    bucket_unix_s INTEGER NOT NULL,
    gpu TEXT NOT NULL,
    first_unix_s FLOAT NOT NULL,
    last_unix_s FLOAT NOT NULL,
    memory_bytes INTEGER,
    temperature_c FLOAT,
    power_known INTEGER NOT NULL,
    power_w FLOAT,
    busy_known INTEGER NOT NULL,
    busy_percent FLOAT,
    CONSTRAINT pk_gpu_tiers PRIMARY KEY (width_s, bucket_unix_s, gpu)
)
 WITHOUT ROWID;
CREATE TABLE gpus (
    gpu TEXT NOT NULL,
    name TEXT,
    unique_id TEXT,
    gfx_version TEXT,
    vram_total_bytes INTEGER,
    gtt_total_bytes INTEGER,
    seen_unix_s FLOAT NOT NULL,
    CONSTRAINT pk_gpus PRIMARY KEY (gpu)
);
CREATE TABLE host_samples (
    at_unix_s FLOAT NOT NULL,
    memory_total_bytes INTEGER,
    memory_available_bytes INTEGER,
    swap_used_bytes INTEGER,
    load_1m FLOAT,
    cpu_percent FLOAT,
    disks JSON,
    CONSTRAINT pk_host_samples PRIMARY KEY (at_unix_s)
)
 WITHOUT ROWID;
CREATE TABLE incidents (
    id TEXT NOT NULL,
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    opened_unix_s FLOAT NOT NULL,
    rule TEXT NOT NULL,
    fault TEXT,
    message TEXT NOT NULL,
    decision TEXT NOT NULL,
    outcome TEXT NOT NULL,
    last_step INTEGER,
    resumed_from TEXT,
    resumed_unix_s FLOAT,
    lost_steps INTEGER,
    downtime_s FLOAT,
    evidence TEXT,
    reason TEXT,
    closed BOOLEAN NOT NULL,
    state TEXT NOT NULL,
    CONSTRAINT pk_incidents PRIMARY KEY (id)
);
CREATE TABLE jobs (
    name TEXT NOT NULL,
    phase TEXT NOT NULL,
    desired_state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    reason TEXT,
    since_unix_s FLOAT NOT NULL,
    state TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    saved_monotonic_s FLOAT NOT NULL,
    saved_unix_s FLOAT NOT NULL,
    CONSTRAINT pk_jobs PRIMARY KEY (name)
);
CREATE TABLE notes (
    "key" TEXT NOT NULL,
    value TEXT NOT NULL,
    at_unix_s FLOAT NOT NULL,
    CONSTRAINT pk_notes PRIMARY KEY ("key")
);
CREATE TABLE process_samples (
    at_unix_s FLOAT NOT NULL,
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    processes INTEGER NOT NULL,
    rss_bytes INTEGER,
    cpu_percent FLOAT,
    uninterruptible INTEGER NOT NULL,
    CONSTRAINT pk_process_samples PRIMARY KEY (at_unix_s, job)
)
 WITHOUT ROWID;
CREATE TABLE process_tiers (
    width_s INTEGER NOT NULL,
    bucket_unix_s INTEGER NOT NULL,
    job TEXT NOT NULL,
    first_unix_s FLOAT NOT NULL,
    last_unix_s FLOAT NOT NULL,
    rss_bytes INTEGER,
    cpu_known INTEGER NOT NULL,
    cpu_percent FLOAT,
    CONSTRAINT pk_process_tiers PRIMARY KEY (width_s, bucket_unix_s, job)
)
 WITHOUT ROWID;
CREATE TABLE remedies (
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    at_unix_s FLOAT NOT NULL,
    cause TEXT NOT NULL,
    remedy TEXT NOT NULL,
    step INTEGER,
    reason TEXT,
    outcome TEXT NOT NULL,
    settled_unix_s FLOAT,
    CONSTRAINT pk_remedies PRIMARY KEY (job, attempt)
);
CREATE TABLE step_metrics (
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    bucket_unix_s INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    step_first INTEGER NOT NULL,
    step_last INTEGER NOT NULL,
    first_unix_s FLOAT NOT NULL,
    last_unix_s FLOAT NOT NULL,
    epoch INTEGER,
    loss_known INTEGER NOT NULL,
    loss_min FLOAT,
    loss_mean FLOAT,
    loss_max FLOAT,
    loss_last FLOAT,
    lr_last FLOAT,
    grad_norm_max FLOAT,
    data_wait_known INTEGER NOT NULL,
    data_wait_mean_s FLOAT,
    gpu_memory_max_bytes INTEGER,
    steps_per_s FLOAT,
    non_finite INTEGER NOT NULL,
    samples INTEGER,
    tokens INTEGER,
    CONSTRAINT pk_step_metrics PRIMARY KEY (job, attempt, rank, bucket_unix_s)
)
 WITHOUT ROWID;
CREATE TABLE step_tiers (
    width_s INTEGER NOT NULL,
    bucket_unix_s INTEGER NOT NULL,
    job TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    first_unix_s FLOAT NOT NULL,
    last_unix_s FLOAT NOT NULL,
    steps INTEGER NOT NULL,
    step_first INTEGER NOT NULL,
    step_last INTEGER NOT NULL,
    paced_steps INTEGER NOT NULL,
    paced_s FLOAT NOT NULL,
    epoch INTEGER,
    loss_known INTEGER NOT NULL,
    loss_min FLOAT,
    loss_mean FLOAT,
    loss_max FLOAT,
    lr_max FLOAT,
    grad_norm_max FLOAT,
    data_wait_known INTEGER NOT NULL,
    data_wait_mean_s FLOAT,
    gpu_memory_max_bytes INTEGER,
    non_finite INTEGER NOT NULL,
    CONSTRAINT pk_step_tiers PRIMARY KEY (width_s, bucket_unix_s, job, attempt, rank)
)
 WITHOUT ROWID;
CREATE INDEX ix_alerts_state ON alerts (state);
CREATE INDEX ix_decisions_job_attempt ON decisions (job, attempt);
CREATE INDEX ix_events_at_unix_s ON events (at_unix_s);
CREATE INDEX ix_flags_job_attempt ON flags (job, attempt);
CREATE INDEX ix_incidents_opened_unix_s ON incidents (opened_unix_s);
CREATE INDEX ix_step_metrics_bucket_unix_s ON step_metrics (bucket_unix_s);
