-- A database of revision 0004_tiers with a row in every table, as it was written when that revision was made.
-- It stands for the files of users: never rewrite it for a later revision; add a migration instead.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
INSERT INTO "alembic_version" VALUES('0004_tiers');
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
INSERT INTO "alerts" VALUES('msg_one','owner','incident.opened','night','{"type":"incident.opened"}',1763600060.0,'waiting',0,1763600060.0,NULL,NULL);
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
INSERT INTO "attempts" VALUES('night',1,1763600001.0,1763600070.0,'/state/jobs/night/1','/runs/night/weights/last.pt',2,300,'newest proven',NULL,9,NULL,NULL,3000000000,19,0,'{"0": 19}',0,8192,512);
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
INSERT INTO "checkpoints" VALUES('night','/runs/night/weights/last.pt',12000003,1763600000123456792,77,1,3,400,'proven',NULL,1763600020.0,1763600020.0,'checkpoint',NULL,NULL,NULL);
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
INSERT INTO "decisions" VALUES(1,'night',1,1763600001.0,'launch','newest proven',NULL,'{"at":{"monotonic_s":1001.0,"unix_s":1763600001.0},"job":"night","attempt":1,"resume_from":{"path":"/runs/night/weights/last.pt","fingerprint":{"size_bytes":12000002,"modified_ns":1763600000123456791,"inode":77},"epoch":2,"step":300,"verdict":"proven","reason":null,"kind":"checkpoint","source":null,"fitness":null,"kept_by":null},"reason":"newest proven","memory":[]}');
INSERT INTO "decisions" VALUES(2,'night',1,1763600060.0,'stop','stalled','stall','{"at":{"monotonic_s":1060.0,"unix_s":1763600060.0},"job":"night","attempt":1,"reason":"stalled","save":true,"flag":{"rule":"stall","severity":2,"at":{"monotonic_s":1060.0,"unix_s":1763600060.0},"message":"no step for 41 s, limit 30 s","since":{"monotonic_s":1019.0,"unix_s":1763600019.0},"since_step":412,"can_save":true,"subject":"0000:0a:00.0","fault":"gpu_hang","diagnosis":null,"start_failure":null,"shadow":false},"takes_back":null}');
CREATE TABLE events (
	id INTEGER NOT NULL, 
	at_unix_s FLOAT NOT NULL, 
	kind TEXT NOT NULL, 
	job TEXT, 
	attempt INTEGER, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (id)
);
INSERT INTO "events" VALUES(1,1763600001.0,'launched','night',1,'{"at":{"monotonic_s":1001.0,"unix_s":1763600001.0},"job":"night","attempt":1,"shim_pid":4242,"training_pid":4243}');
INSERT INTO "events" VALUES(2,1763600002.0,'agent_reported','night',1,'{"at":{"monotonic_s":1002.0,"unix_s":1763600002.0},"job":"night","attempt":1,"facts":{"epochs":3,"word":"its own"},"offset":90,"pid":4243,"rank":0,"agent_event":"plan"}');
INSERT INTO "events" VALUES(3,1763600002.0,'stage_entered','night',1,'{"at":{"monotonic_s":1002.0,"unix_s":1763600002.0},"job":"night","attempt":1,"stage":"step","stages_complete":true}');
INSERT INTO "events" VALUES(4,1763600002.0,'supervision_changed','night',1,'{"at":{"monotonic_s":1002.0,"unix_s":1763600002.0},"job":"night","attempt":1,"place":"rule stall","error":"ValueError: \"mended\": no","kind":"steps_made","offset":null,"recovered":false,"persistent":false}');
INSERT INTO "events" VALUES(5,1763600002.0,'kernel_reported',NULL,NULL,'{"at":{"monotonic_s":1002.0,"unix_s":1763600002.0},"findings":[{"at":{"monotonic_s":1002.0,"unix_s":1763600002.0},"sequence":7,"fault":"gpu_hang","severity":2,"gpu":"0000:0a:00.0","line":"amdgpu: ring gfx_0.0.0 timeout","about":"gpu"}],"sequence":7}');
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
INSERT INTO "flags" VALUES(1,'night',1,1763600060.0,'stall','critical','0000:0a:00.0','gpu_hang','no step for 41 s, limit 30 s',1763600019.0,412,1);
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
 WITHOUT ROWID

;
INSERT INTO "gpu_samples" VALUES(1763600000.0,'0000:0a:00.0','rocm-smi',99.0,NULL,4200000000,NULL,71.0,83.0,NULL,112.5,NULL,NULL,NULL,NULL,'active');
INSERT INTO "gpu_samples" VALUES(1763600000.0,'0000:0a:00.0','sysfs',99.0,NULL,4200000000,NULL,71.0,83.0,NULL,112.5,NULL,NULL,NULL,NULL,'active');
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
 WITHOUT ROWID

;
INSERT INTO "gpu_tiers" VALUES(10,1763600000,'0000:0a:00.0',1763600000.0,1763600000.0,4200000000,83.0,2,112.5,2,99.0);
INSERT INTO "gpu_tiers" VALUES(60,1763599980,'0000:0a:00.0',1763600000.0,1763600000.0,4200000000,83.0,2,112.5,2,99.0);
INSERT INTO "gpu_tiers" VALUES(300,1763599800,'0000:0a:00.0',1763600000.0,1763600000.0,4200000000,83.0,2,112.5,2,99.0);
INSERT INTO "gpu_tiers" VALUES(3600,1763596800,'0000:0a:00.0',1763600000.0,1763600000.0,4200000000,83.0,2,112.5,2,99.0);
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
INSERT INTO "gpus" VALUES('0000:0a:00.0','Radeon RX 5600 XT','0x1234','gfx1010',6425673728,NULL,1763600000.0);
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
 WITHOUT ROWID

;
INSERT INTO "host_samples" VALUES(1763600000.0,34359738368,NULL,NULL,3.5,NULL,'[{"path": "/runs", "free_bytes": 100000000000, "total_bytes": 1000000000000}]');
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
INSERT INTO "incidents" VALUES('night-1','night',1,1763600060.0,'stall','gpu_hang','no step for 41 s, limit 30 s','stop','open',411,NULL,NULL,NULL,NULL,NULL,NULL,0,'{"id":"night-1","job":"night","attempt":1,"flag":{"rule":"stall","severity":2,"at":{"monotonic_s":1060.0,"unix_s":1763600060.0},"message":"no step for 41 s, limit 30 s","since":{"monotonic_s":1019.0,"unix_s":1763600019.0},"since_step":412,"can_save":true,"subject":"0000:0a:00.0","fault":"gpu_hang","diagnosis":null,"start_failure":null,"shadow":false},"decision":"stop","outcome":"open","confirmed":null,"last_step":411,"scale":"training","last_step_at":{"monotonic_s":1019.0,"unix_s":1763600019.0},"resumed_from":null,"resumed_at":null,"lost_steps":null,"downtime_s":null,"evidence":null,"reason":null,"cause":null,"remedy":null,"remedy_why":null,"finding":null}');
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
INSERT INTO "jobs" VALUES('night','stopping','run',1,'stalled',1763600060.0,'{"name":"night","limits":{"grace_s":30.0,"save_s":20.0,"kill_wait_s":10.0,"gpu_memory_release_s":60.0,"resort_s":60.0,"triage_s":null,"budget":{"restarts":10,"restarts_per_cause":6,"restarts_per_period":30,"period_s":86400.0,"settle_s":600.0,"backoff_s":[0.0,5.0,30.0,120.0,600.0],"jitter_fraction":0.1,"never_retry_exit_codes":[],"always_retry_exit_codes":[]},"remedies":{"enabled":true,"forbid":[],"learn":true,"same_place_steps":2,"helped_after_steps":100,"give_up_after_failures":3,"lr_factor":0.5,"clip_norm":1.0,"batch_factor":0.5,"scale_lr":false,"image_factor":0.75,"skip_steps":5,"conv2d_workspace_mb":256,"back_after_s":300.0,"max_returns":3,"non_finite":["skip_step","older_generation","lower_lr","clip_gradients","amp_off","skip_data"],"oom_gpu":["allocator","conv2d_workspace","half_batch","half_batch","smaller_images","cpu_profile"],"oom_host":["fewer_workers","no_workers","half_batch"],"fragmentation":["restart","allocator","conv2d_workspace","half_batch","half_batch","smaller_images"],"miopen":["conv2d","cudnn_off","cpu_profile"],"slow_start":["restart","conv2d","cudnn_off","compile_off","no_workers","other_gpu","cpu_profile"],"stall":["restart","no_workers","conv2d","other_gpu","cpu_profile"],"stall_data":["restart","no_workers"],"gpu_hang":["restart","conv2d","no_workers","other_gpu","cpu_profile","reset_gpu","reboot"],"gpu_lost":["other_gpu","cpu_profile","reset_gpu","reboot"],"no_kernel_image":["conv2d","cudnn_off","other_gpu","cpu_profile"],"blas":["restart","amp_off","other_gpu","cpu_profile"],"compile":["compile_off"],"loader":["restart","fewer_workers","no_workers"],"crash":["restart","older_generation"],"hardware":["restart","other_gpu","cpu_profile"]}},"desired_state":"run","phase":"stopping","since":{"monotonic_s":1060.0,"unix_s":1763600060.0},"attempt":{"number":1,"launched_at":{"monotonic_s":1001.0,"unix_s":1763600001.0},"resume_from":{"path":"/runs/night/weights/last.pt","fingerprint":{"size_bytes":12000002,"modified_ns":1763600000123456791,"inode":77},"epoch":2,"step":300,"verdict":"proven","reason":null,"kind":"checkpoint","source":null,"fitness":null,"kept_by":null},"resume_curve":null,"memory_before":[],"shim_pid":4242,"training_pid":4243,"first_step_at":{"monotonic_s":1008.0,"unix_s":1763600008.0},"last_step":411,"last_step_at":{"monotonic_s":1019.0,"unix_s":1763600019.0},"scale":null,"first_step":null,"went_on":null,"epoch":4,"loss":0.731,"train_ended":false,"patched":false,"exit":{"at":{"monotonic_s":1070.0,"unix_s":1763600070.0},"code":null,"signal":9,"error":null,"max_rss_bytes":3000000000},"host_lost":null,"launch_error":null,"launch_shortage":null,"waits":[]},"stop":{"at":{"monotonic_s":1060.0,"unix_s":1763600060.0},"reason":"stalled","save":true,"flag":{"rule":"stall","severity":2,"at":{"monotonic_s":1060.0,"unix_s":1763600060.0},"message":"no step for 41 s, limit 30 s","since":{"monotonic_s":1019.0,"unix_s":1763600019.0},"since_step":412,"can_save":true,"subject":"0000:0a:00.0","fault":"gpu_hang","diagnosis":null,"start_failure":null,"shadow":false},"signalled_at":null,"killed_at":{"monotonic_s":1068.0,"unix_s":1763600068.0}},"retry":{"not_before":{"monotonic_s":1090.0,"unix_s":1763600090.0},"reason":"stalled","resume_point":{"checkpoint":{"path":"/runs/night/weights/last.pt","fingerprint":{"size_bytes":12000002,"modified_ns":1763600000123456791,"inode":77},"epoch":2,"step":300,"verdict":"proven","reason":null,"kind":"checkpoint","source":null,"fitness":null,"kept_by":null},"possible":true,"reason":"newest proven","curve":null},"fault_unix_s":1763600019.0,"fault_step":412,"older_than":null,"resort":null,"awaits_triage":false},"ledger":{"total":4,"in_a_row":2,"causes":[["gpu_hang",2]],"free_in_a_row":1,"recent_unix_s":[1763600005.0,1763600040.0],"furthest_step":411,"proven_step":400},"incident":{"id":"night-1","job":"night","attempt":1,"flag":{"rule":"stall","severity":2,"at":{"monotonic_s":1060.0,"unix_s":1763600060.0},"message":"no step for 41 s, limit 30 s","since":{"monotonic_s":1019.0,"unix_s":1763600019.0},"since_step":412,"can_save":true,"subject":"0000:0a:00.0","fault":"gpu_hang","diagnosis":null,"start_failure":null,"shadow":false},"decision":"stop","outcome":"open","confirmed":null,"last_step":411,"scale":"training","last_step_at":{"monotonic_s":1019.0,"unix_s":1763600019.0},"resumed_from":null,"resumed_at":null,"lost_steps":null,"downtime_s":null,"evidence":null,"reason":null,"cause":null,"remedy":null,"remedy_why":null,"finding":null},"open_flags":[["stall","0000:0a:00.0",2],["vram_high","",1]],"shadows":[],"shadows_noted":0,"unkillable":false,"resorts":[],"miopen_failed":false,"course":{"trials":[{"attempt":2,"at":{"monotonic_s":1061.0,"unix_s":1763600061.0},"cause":"gpu_hang","remedy":"restart","step":411,"start_failure":null,"reason":"restart without changes","outcome":"helped","settled_at":{"monotonic_s":1300.0,"unix_s":1763600300.0}}],"in_force":[{"remedy":"lower_lr","cause":"non_finite","attempt":1,"step":300,"gpu":null,"applied":"lr 0.005"}],"returns":1,"forgiven_at_attempt":0},"triage":null,"framework":null,"adjustable":[],"torch":false,"batches_per_epoch":null,"renumbered":false,"restart_asked":false,"fresh_asked":false,"start_curve":null,"began_unix_s":null,"shutting_down":false,"highest_number":0,"rebuilt":null,"reason":"stalled"}','5c2a7f3e-boot-one',1061.0,1763600061.0);
CREATE TABLE notes (
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	at_unix_s FLOAT NOT NULL, 
	CONSTRAINT pk_notes PRIMARY KEY ("key")
);
INSERT INTO "notes" VALUES('kernel log','5c2a 1234',1763600020.0);
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
 WITHOUT ROWID

;
INSERT INTO "process_samples" VALUES(1763600000.0,'night',1,5,3000000000,NULL,1);
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
 WITHOUT ROWID

;
INSERT INTO "process_tiers" VALUES(10,1763600000,'night',1763600000.0,1763600000.0,3000000000,0,NULL);
INSERT INTO "process_tiers" VALUES(60,1763599980,'night',1763600000.0,1763600000.0,3000000000,0,NULL);
INSERT INTO "process_tiers" VALUES(300,1763599800,'night',1763600000.0,1763600000.0,3000000000,0,NULL);
INSERT INTO "process_tiers" VALUES(3600,1763596800,'night',1763600000.0,1763600000.0,3000000000,0,NULL);
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
INSERT INTO "remedies" VALUES('night',2,1763600061.0,'gpu_hang','restart',411,'restart without changes','helped',1763600300.0);
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
	non_finite INTEGER NOT NULL, samples INTEGER, tokens INTEGER, 
	CONSTRAINT pk_step_metrics PRIMARY KEY (job, attempt, rank, bucket_unix_s)
)
 WITHOUT ROWID

;
INSERT INTO "step_metrics" VALUES('night',1,0,1763600000,9,1,9,1763600001.0,1763600009.0,0,9,0.5,0.5,0.5,0.5,0.01,1.5,9,0.02,4200000000,1.0,0,160,81920);
INSERT INTO "step_metrics" VALUES('night',1,0,1763600010,10,10,19,1763600010.0,1763600019.0,0,10,0.5,0.5,0.5,0.5,0.01,1.5,10,0.02,4200000000,1.0,0,160,81920);
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
 WITHOUT ROWID

;
INSERT INTO "step_tiers" VALUES(60,1763599980,'night',1,0,1763600001.0,1763600019.0,19,1,19,17,17.0,0,19,0.5,0.5,0.5,0.01,1.5,19,0.02,4200000000,0);
INSERT INTO "step_tiers" VALUES(300,1763599800,'night',1,0,1763600001.0,1763600019.0,19,1,19,17,17.0,0,19,0.5,0.5,0.5,0.01,1.5,19,0.02,4200000000,0);
INSERT INTO "step_tiers" VALUES(3600,1763596800,'night',1,0,1763600001.0,1763600019.0,19,1,19,17,17.0,0,19,0.5,0.5,0.5,0.01,1.5,19,0.02,4200000000,0);
CREATE INDEX ix_incidents_opened_unix_s ON incidents (opened_unix_s);
CREATE INDEX ix_flags_job_attempt ON flags (job, attempt);
CREATE INDEX ix_decisions_job_attempt ON decisions (job, attempt);
CREATE INDEX ix_alerts_state ON alerts (state);
CREATE INDEX ix_step_metrics_bucket_unix_s ON step_metrics (bucket_unix_s);
CREATE INDEX ix_events_at_unix_s ON events (at_unix_s);
COMMIT;
