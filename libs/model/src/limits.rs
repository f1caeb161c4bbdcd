//! Every limit that more than one crate must agree on. Sizes are in bytes,
//! durations in seconds, unless the name says otherwise. `/info` shows them
//! under these names, which clients read: a name stays.

/// A script's text.
pub const SCRIPT_BYTES_MAX: usize = 1024 * 1024;
/// A script up to this size is kept in its job record; a longer one as a blob.
pub const SCRIPT_INLINE_BYTES_MAX: usize = 16 * 1024;
/// One file or output.
pub const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// All files, or all outputs, of one job together.
pub const JOB_FILES_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How many files, and how many outputs, a job may name.
pub const JOB_FILES_MAX: usize = 256;
/// A blob is kept and carried in pieces of this size.
pub const BLOB_CHUNK_BYTES: usize = 512 * 1024;
/// Environment variables of a flow or a job.
pub const ENV_ENTRIES_MAX: usize = 256;
/// All names and values of an environment together, before rendering.
pub const ENV_BYTES_MAX: usize = 64 * 1024;
/// One rendered environment value.
pub const ENV_VALUE_RENDERED_BYTES_MAX: usize = 64 * 1024;
/// The whole rendered environment.
pub const ENV_RENDERED_BYTES_MAX: usize = 256 * 1024;
/// One node's result, as JSON.
pub const RESULT_BYTES_MAX: usize = 256 * 1024;
/// Upstream results handed to one job, as JSON. With everything else of the job they have to fit into
/// one commit and one message.
pub const INPUTS_BYTES_MAX: usize = 3 * 1024 * 1024;
/// A flow's gathered result, as JSON.
pub const FLOW_RESULT_BYTES_MAX: usize = 1024 * 1024;
/// Nodes of one flow.
pub const FLOW_NODES_MAX: usize = 100_000;
/// Edges of one flow.
pub const FLOW_EDGES_MAX: usize = 1_000_000;
/// Records one script may touch.
pub const COMMIT_RECORDS_MAX: usize = 1000;
/// Arguments one script may be given.
pub const COMMIT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A name, in characters.
pub const NAME_CHARS_MAX: usize = 128;
/// Entries of one page, at most.
pub const PAGE_SIZE_MAX: u32 = 1000;
/// Entries of one page when the caller does not say.
pub const PAGE_SIZE_DEFAULT: u32 = 50;
/// A page, a snapshot part or a batch ends here as well as at its count.
pub const PAGE_BYTES_MAX: usize = 1024 * 1024;
/// Changes a watcher may lag behind before its stream is ended.
pub const WATCH_BUFFER: usize = 256;
/// One gRPC message, both ways.
pub const GRPC_MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of an attempt's output that the coordinator keeps.
pub const LOG_TAIL_BYTES_MAX: usize = 64 * 1024;
/// A piece of an attempt's whole output, as its supervisor gives it.
pub const LOG_PIECE_BYTES_MAX: usize = 256 * 1024;
/// Times of an attempt's output that are kept: from which byte on it was printed when.
pub const LOG_TIMES_MAX: usize = 1024;
/// The first bytes of an attempt's output that are kept; of what follows the last ones are, what lies between is dropped and marked.
pub const OUTPUT_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// The name of a signal, in characters.
pub const SIGNAL_CHARS_MAX: usize = 128;
/// Bytes of a signal's payload.
pub const SIGNAL_PAYLOAD_BYTES_MAX: usize = 4 * 1024;
/// Signals of one flow.
pub const FLOW_SIGNALS_MAX: usize = 1000;
/// Inputs that wait for a flow until its owner takes them up.
pub const FLOW_INPUTS_MAX: usize = 10_000;
/// Other flows that a flow may wait for while it is not kept in memory.
pub const AWAITED_FLOWS_MAX: usize = 100;
/// Labels of a runner, and of what a node asks of runners.
pub const LABELS_MAX: usize = 64;
/// The name of a label.
pub const LABEL_KEY_BYTES_MAX: usize = 128;
/// The value of a label.
pub const LABEL_VALUE_BYTES_MAX: usize = 256;
/// The topic that a runner's requests travel under.
pub const RUNNER_TOPIC_BYTES_MAX: usize = 255;
/// Script types that a runner's record may list: each of today's, with room for more of them to come.
pub const RUNNER_SCRIPT_TYPES_MAX: usize = 16;
/// The host in an address, as DNS bounds it.
pub const HOST_BYTES_MAX: usize = 253;
/// The presence of a supervisor, as JSON.
pub const PRESENCE_BYTES_MAX: usize = 512 * 1024;
/// Instances that it tells of.
pub const PRESENCE_INSTANCES_MAX: usize = 1000;
/// The name of a supervisor.
pub const SUPERVISOR_NAME_BYTES_MAX: usize = 128;
/// Supervisors that a gateway's description names.
pub const GATEWAY_PEERS_MAX: usize = 1000;
/// Maximum number of its own roles that an actor is shown.
pub const ROLES_TOLD_MAX: usize = 1000;
/// Exit codes after which a node is not tried again.
pub const NO_RETRY_EXIT_CODES_MAX: usize = 256;
/// Conditions outside the flow that one node may name.
pub const PREREQUISITES_MAX: usize = 16;
/// The expression that decides whether a node runs.
pub const WHEN_BYTES_MAX: usize = 1024;
/// Operations that its evaluation may take.
pub const WHEN_OPERATIONS_MAX: u64 = 10_000;
/// Nodes of one AddFlowNodes.
pub const ADD_NODES_MAX: usize = 1000;
/// Seconds that one RunJob may wait.
pub const RUN_JOB_WAIT_SECS_MAX: u32 = 3600;
/// A flow's drawing.
pub const GRAPH_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Seconds between asking a script to end and ending it, for a cancel that does not say.
pub const STOP_GRACE_SECS: u32 = 5;
/// Time without a heartbeat after which a scheduler replica has lost its lease.
pub const LEASE_SECS: u32 = 5;
/// Retries a node may ask for.
pub const RETRIES_MAX: u32 = 100;
/// Attempts of one generation whose instance may vanish: the last of them ends the node as QUARANTINED.
pub const DEATHS_MAX: u32 = 3;
/// The shortest wait before a node is tried again whose instance vanished more than once.
pub const DEATH_WAIT_SECS: u32 = 30;
/// Lost attempts of one generation that a node may ask to have repeated.
pub const LOSSES_MAX: u32 = 100;
/// Lost attempts that are repeated for a node that does not say.
pub const LOSSES_DEFAULT: u32 = 3;
/// How long nodes that clean up have their turn after a flow's deadline.
pub const CLEAN_UP_SECS: u32 = 3600;
/// Any timeout a node may ask for: 30 days.
pub const TIMEOUT_SECS_MAX: u32 = 30 * 24 * 3600;
/// Run time of a node that does not say.
pub const TIMEOUT_SECS_DEFAULT: u32 = 3600;
/// Dispatched to accepted, for a node that does not say.
pub const TIMEOUT_ACK_SECS_DEFAULT: u32 = 60;
/// How long the scheduler waits after a run time limit before it closes the attempt itself.
pub const TIMEOUT_GRACE_SECS: u32 = 60;
/// How long a cancelled attempt may stay unconfirmed.
pub const CANCEL_TIMEOUT_SECS: u32 = 30;
/// A supervisor without presence for this long has lost its attempts.
pub const LOST_AFTER_SECS: u32 = 300;
/// Interval at which a supervisor announces its presence.
pub const PRESENCE_INTERVAL_SECS: u32 = 10;
/// Time without a sign of life after which a supervisor counts as dead.
pub const PRESENCE_DEAD_AFTER_SECS: u32 = 30;
/// A request id, in characters.
pub const REQUEST_ID_CHARS_MAX: usize = 64;
/// Two of the same `request_id` have one effect for this long.
pub const REQUEST_ID_KEEP_SECS: u32 = 24 * 3600;
/// Files, script and inputs of one job travel inline up to this size.
pub const INLINE_BYTES_MAX: usize = 256 * 1024;

/// Memory of a job and everything that it starts, unless its supervisor's policy says otherwise.
pub const JOB_MEMORY_BYTES_DEFAULT: u64 = 1024 * 1024 * 1024;
/// Processes and threads that a job may have at once, unless its supervisor's policy says otherwise.
pub const JOB_PROCESSES_DEFAULT: u32 = 256;
/// Bytes that a job's directory may hold, unless its supervisor's policy says otherwise.
pub const JOB_DISK_BYTES_DEFAULT: u64 = 1024 * 1024 * 1024;
/// Bytes that a context may hold on one machine, for its running jobs and the data kept between them, unless the
/// supervisor's policy says otherwise.
pub const CONTEXT_DISK_BYTES_DEFAULT: u64 = 10 * 1024 * 1024 * 1024;
/// Bytes that must stay free on the file system of a work directory, unless a flag says otherwise: below this floor the
/// job that holds the most ends. On a small file system the next limit, a percentage, is the lesser.
pub const DISK_FLOOR_BYTES_DEFAULT: u64 = 1024 * 1024 * 1024;
/// The floor as a part of the file system, in percent; the lesser of the two counts.
pub const DISK_FLOOR_PERCENT_DEFAULT: u64 = 5;
/// Divisor that gives the lower floor, below which nothing starts, from that floor.
pub const DISK_STOP_PART: u64 = 4;
/// Ended processes that the end of an attempt names at most.
pub const ENDED_PROCESSES_MAX: usize = 16;

/// The text of a message.
pub const MESSAGE_TEXT_BYTES_MAX: usize = 512 * 1024;
/// The topic of a message, in characters.
pub const MESSAGE_TOPIC_CHARS_MAX: usize = 256;
/// How long chat and mail may take to arrive: 6 days, less than what arrived is remembered.
pub const LETTER_TIMEOUT_SECS_MAX: u32 = 6 * 24 * 3600;
/// How long chat and mail that do not say may take to arrive.
pub const LETTER_TIMEOUT_SECS_DEFAULT: u32 = 3600;
/// Admins of a context, those with the lowest numbers, who receive what names no recipient: each has a copy of its own.
pub const LETTER_ADMINS_MAX: usize = 8;
/// How long a message that arrived is remembered, and not taken twice.
pub const LETTER_SEEN_SECS: u32 = 7 * 24 * 3600;
/// Messages that an actor received in a context and did not acknowledge.
pub const INBOX_MAX: usize = 10_000;
/// Bytes of their texts, topics and signatures.
pub const INBOX_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Messages of a context that are kept though nothing more is expected of them: received ones that were acknowledged,
/// sent ones that arrived, jobs of programs whose flow has ended. The oldest go first.
pub const MESSAGES_DONE_MAX: usize = 100_000;
/// Received messages of a context that plain Redis readers find; the oldest go first.
pub const MSG_IN_MAX: usize = 10_000;
/// How long the record of a runner that was deleted is kept, for those who listen until what runs there has ended.
pub const DELETED_RUNNER_KEEP_SECS: u32 = 7 * 24 * 3600;
/// Addresses of one actor.
pub const ACTOR_ADDRESSES_MAX: usize = 8;
/// Keys of one actor that are in force, or will be.
pub const ACTOR_KEYS_MAX: usize = 8;
/// Keys of one actor that are remembered, those that are over with them.
pub const ACTOR_KEYS_KEPT_MAX: usize = 64;
/// Period in which an actor gives itself no more keys than are remembered: 30 days. A key's owner is remembered forever.
pub const ACTOR_KEYS_SPAN_SECS: u32 = 30 * 24 * 3600;
/// How long an actor's former keys count beside its new one, at most.
pub const ACTOR_KEY_OVERLAP_SECS_MAX: u32 = 30 * 24 * 3600;
/// Actors in one list of a context: its admins, its executors, its readers.
pub const CONTEXT_MEMBERS_MAX: usize = 10_000;
/// Contexts that one actor created and that still exist. The bootstrap identity may create more.
pub const ACTOR_CONTEXTS_MAX: u64 = 64;
/// Bytes of the blobs of all contexts that one actor created.
pub const ACTOR_BLOB_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// Calls a second that one actor may make of one server, on average.
pub const ACTOR_CALLS_PER_SEC: u64 = 1000;
/// Calls that one actor may make of one server at once, after it has been quiet for a while.
pub const ACTOR_CALLS_BURST: u64 = 2000;
/// Flows of one context that are kept, those that have ended with them.
pub const CONTEXT_FLOWS_MAX: u64 = 1_000_000;
/// Flows that may be created in one context each second at one storage, on average.
pub const CONTEXT_FLOWS_PER_SEC: u64 = 10_000;
/// Flows of one context that have not ended, whether they were started or not.
pub const CONTEXT_FLOWS_OPEN_MAX: u64 = 200_000;
/// Nodes of those flows: jobs that are queued, run, or wait for others.
pub const CONTEXT_JOBS_OPEN_MAX: u64 = 1_000_000;
/// Kept jobs of one context: those that belong to no flow.
pub const CONTEXT_JOBS_KEPT_MAX: u64 = 100_000;
/// Bytes of the blobs of one context.
pub const CONTEXT_BLOB_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Runner records of one context.
pub const CONTEXT_RUNNERS_MAX: u64 = 1000;
/// Deleted runner records of one context that are still kept.
pub const CONTEXT_RUNNERS_DELETED_MAX: u64 = 10_000;
/// How long a blob is kept that nothing refers to.
pub const BLOB_IDLE_SECS: u32 = 600;
/// How long an output of a job is kept that no end of an attempt has named yet: its report may be late.
pub const OUTPUT_IDLE_SECS: u32 = 24 * 3600;
/// How long events are kept.
pub const EVENTS_KEEP_SECS: u32 = 7 * 24 * 3600;
/// How long an ended flow is kept, with its jobs, results, logs and messages.
pub const ENDED_FLOW_KEEP_SECS: u32 = 30 * 24 * 3600;
/// Ended flows of one context that are kept; beyond it the oldest go.
pub const ENDED_FLOWS_MAX: u64 = 100_000;
/// Bytes that ended flows of one context take in Redis; beyond it the oldest go.
pub const ENDED_FLOW_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// How long a message is kept of which nothing more is expected.
pub const MESSAGE_KEEP_SECS: u32 = 30 * 24 * 3600;
/// How long audit records are kept.
pub const AUDIT_KEEP_SECS: u32 = 90 * 24 * 3600;
/// Jobs of one message that a program pushed to Redis.
pub const RAW_JOBS_MAX: usize = 1000;
/// Log entries that are kept of a message.
pub const MESSAGE_LOGS_MAX: usize = 100;
/// An actor's signature over a job or a message.
pub const SIGNATURE_BYTES_MAX: usize = 64 * 1024;
/// How long an actor's signature over a job holds unless it says less: 30 days.
pub const JOB_SIGNATURE_SECS_DEFAULT: u32 = 30 * 24 * 3600;
/// How long it may hold at most: 366 days.
pub const JOB_SIGNATURE_SECS_MAX: u32 = 366 * 24 * 3600;
/// New signatures that one retry may bring.
pub const RETRY_SIGNATURES_MAX: usize = 500;

/// All of them by their names in small letters, for `/info`: every service shows what all hold to.
pub const TABLE: [(&str, u64); 120] = [
    ("script_bytes_max", SCRIPT_BYTES_MAX as u64),
    ("script_inline_bytes_max", SCRIPT_INLINE_BYTES_MAX as u64),
    ("file_bytes_max", FILE_BYTES_MAX as u64),
    ("job_files_bytes_max", JOB_FILES_BYTES_MAX as u64),
    ("job_files_max", JOB_FILES_MAX as u64),
    ("blob_chunk_bytes", BLOB_CHUNK_BYTES as u64),
    ("env_entries_max", ENV_ENTRIES_MAX as u64),
    ("env_bytes_max", ENV_BYTES_MAX as u64),
    ("env_value_rendered_bytes_max", ENV_VALUE_RENDERED_BYTES_MAX as u64),
    ("env_rendered_bytes_max", ENV_RENDERED_BYTES_MAX as u64),
    ("result_bytes_max", RESULT_BYTES_MAX as u64),
    ("inputs_bytes_max", INPUTS_BYTES_MAX as u64),
    ("flow_result_bytes_max", FLOW_RESULT_BYTES_MAX as u64),
    ("flow_nodes_max", FLOW_NODES_MAX as u64),
    ("flow_edges_max", FLOW_EDGES_MAX as u64),
    ("commit_records_max", COMMIT_RECORDS_MAX as u64),
    ("commit_bytes_max", COMMIT_BYTES_MAX as u64),
    ("name_chars_max", NAME_CHARS_MAX as u64),
    ("page_size_max", PAGE_SIZE_MAX as u64),
    ("page_size_default", PAGE_SIZE_DEFAULT as u64),
    ("page_bytes_max", PAGE_BYTES_MAX as u64),
    ("watch_buffer", WATCH_BUFFER as u64),
    ("grpc_message_bytes_max", GRPC_MESSAGE_BYTES_MAX as u64),
    ("log_tail_bytes_max", LOG_TAIL_BYTES_MAX as u64),
    ("log_piece_bytes_max", LOG_PIECE_BYTES_MAX as u64),
    ("log_times_max", LOG_TIMES_MAX as u64),
    ("output_bytes_max", OUTPUT_BYTES_MAX),
    ("signal_chars_max", SIGNAL_CHARS_MAX as u64),
    ("signal_payload_bytes_max", SIGNAL_PAYLOAD_BYTES_MAX as u64),
    ("flow_signals_max", FLOW_SIGNALS_MAX as u64),
    ("flow_inputs_max", FLOW_INPUTS_MAX as u64),
    ("awaited_flows_max", AWAITED_FLOWS_MAX as u64),
    ("labels_max", LABELS_MAX as u64),
    ("label_key_bytes_max", LABEL_KEY_BYTES_MAX as u64),
    ("label_value_bytes_max", LABEL_VALUE_BYTES_MAX as u64),
    ("runner_topic_bytes_max", RUNNER_TOPIC_BYTES_MAX as u64),
    ("runner_script_types_max", RUNNER_SCRIPT_TYPES_MAX as u64),
    ("host_bytes_max", HOST_BYTES_MAX as u64),
    ("presence_bytes_max", PRESENCE_BYTES_MAX as u64),
    ("presence_instances_max", PRESENCE_INSTANCES_MAX as u64),
    ("supervisor_name_bytes_max", SUPERVISOR_NAME_BYTES_MAX as u64),
    ("gateway_peers_max", GATEWAY_PEERS_MAX as u64),
    ("roles_told_max", ROLES_TOLD_MAX as u64),
    ("no_retry_exit_codes_max", NO_RETRY_EXIT_CODES_MAX as u64),
    ("prerequisites_max", PREREQUISITES_MAX as u64),
    ("when_bytes_max", WHEN_BYTES_MAX as u64),
    ("when_operations_max", WHEN_OPERATIONS_MAX),
    ("add_nodes_max", ADD_NODES_MAX as u64),
    ("run_job_wait_secs_max", RUN_JOB_WAIT_SECS_MAX as u64),
    ("graph_bytes_max", GRAPH_BYTES_MAX as u64),
    ("stop_grace_secs", STOP_GRACE_SECS as u64),
    ("lease_secs", LEASE_SECS as u64),
    ("retries_max", RETRIES_MAX as u64),
    ("deaths_max", DEATHS_MAX as u64),
    ("death_wait_secs", DEATH_WAIT_SECS as u64),
    ("losses_max", LOSSES_MAX as u64),
    ("losses_default", LOSSES_DEFAULT as u64),
    ("clean_up_secs", CLEAN_UP_SECS as u64),
    ("timeout_secs_max", TIMEOUT_SECS_MAX as u64),
    ("timeout_secs_default", TIMEOUT_SECS_DEFAULT as u64),
    ("timeout_ack_secs_default", TIMEOUT_ACK_SECS_DEFAULT as u64),
    ("timeout_grace_secs", TIMEOUT_GRACE_SECS as u64),
    ("cancel_timeout_secs", CANCEL_TIMEOUT_SECS as u64),
    ("lost_after_secs", LOST_AFTER_SECS as u64),
    ("presence_interval_secs", PRESENCE_INTERVAL_SECS as u64),
    ("presence_dead_after_secs", PRESENCE_DEAD_AFTER_SECS as u64),
    ("request_id_chars_max", REQUEST_ID_CHARS_MAX as u64),
    ("request_id_keep_secs", REQUEST_ID_KEEP_SECS as u64),
    ("inline_bytes_max", INLINE_BYTES_MAX as u64),
    ("job_memory_bytes_default", JOB_MEMORY_BYTES_DEFAULT),
    ("job_processes_default", JOB_PROCESSES_DEFAULT as u64),
    ("job_disk_bytes_default", JOB_DISK_BYTES_DEFAULT),
    ("context_disk_bytes_default", CONTEXT_DISK_BYTES_DEFAULT),
    ("disk_floor_bytes_default", DISK_FLOOR_BYTES_DEFAULT),
    ("disk_floor_percent_default", DISK_FLOOR_PERCENT_DEFAULT),
    ("disk_stop_part", DISK_STOP_PART),
    ("ended_processes_max", ENDED_PROCESSES_MAX as u64),
    ("message_text_bytes_max", MESSAGE_TEXT_BYTES_MAX as u64),
    ("message_topic_chars_max", MESSAGE_TOPIC_CHARS_MAX as u64),
    ("letter_timeout_secs_max", LETTER_TIMEOUT_SECS_MAX as u64),
    ("letter_timeout_secs_default", LETTER_TIMEOUT_SECS_DEFAULT as u64),
    ("letter_admins_max", LETTER_ADMINS_MAX as u64),
    ("letter_seen_secs", LETTER_SEEN_SECS as u64),
    ("inbox_max", INBOX_MAX as u64),
    ("inbox_bytes_max", INBOX_BYTES_MAX as u64),
    ("messages_done_max", MESSAGES_DONE_MAX as u64),
    ("msg_in_max", MSG_IN_MAX as u64),
    ("deleted_runner_keep_secs", DELETED_RUNNER_KEEP_SECS as u64),
    ("actor_addresses_max", ACTOR_ADDRESSES_MAX as u64),
    ("actor_keys_max", ACTOR_KEYS_MAX as u64),
    ("actor_keys_kept_max", ACTOR_KEYS_KEPT_MAX as u64),
    ("actor_keys_span_secs", ACTOR_KEYS_SPAN_SECS as u64),
    ("actor_key_overlap_secs_max", ACTOR_KEY_OVERLAP_SECS_MAX as u64),
    ("context_members_max", CONTEXT_MEMBERS_MAX as u64),
    ("actor_contexts_max", ACTOR_CONTEXTS_MAX),
    ("actor_blob_bytes_max", ACTOR_BLOB_BYTES_MAX),
    ("actor_calls_per_sec", ACTOR_CALLS_PER_SEC),
    ("actor_calls_burst", ACTOR_CALLS_BURST),
    ("context_flows_max", CONTEXT_FLOWS_MAX),
    ("context_flows_per_sec", CONTEXT_FLOWS_PER_SEC),
    ("context_flows_open_max", CONTEXT_FLOWS_OPEN_MAX),
    ("context_jobs_open_max", CONTEXT_JOBS_OPEN_MAX),
    ("context_jobs_kept_max", CONTEXT_JOBS_KEPT_MAX),
    ("context_blob_bytes_max", CONTEXT_BLOB_BYTES_MAX),
    ("context_runners_max", CONTEXT_RUNNERS_MAX),
    ("context_runners_deleted_max", CONTEXT_RUNNERS_DELETED_MAX),
    ("blob_idle_secs", BLOB_IDLE_SECS as u64),
    ("output_idle_secs", OUTPUT_IDLE_SECS as u64),
    ("events_keep_secs", EVENTS_KEEP_SECS as u64),
    ("ended_flow_keep_secs", ENDED_FLOW_KEEP_SECS as u64),
    ("ended_flows_max", ENDED_FLOWS_MAX),
    ("ended_flow_bytes_max", ENDED_FLOW_BYTES_MAX),
    ("message_keep_secs", MESSAGE_KEEP_SECS as u64),
    ("audit_keep_secs", AUDIT_KEEP_SECS as u64),
    ("raw_jobs_max", RAW_JOBS_MAX as u64),
    ("message_logs_max", MESSAGE_LOGS_MAX as u64),
    ("signature_bytes_max", SIGNATURE_BYTES_MAX as u64),
    ("job_signature_secs_default", JOB_SIGNATURE_SECS_DEFAULT as u64),
    ("job_signature_secs_max", JOB_SIGNATURE_SECS_MAX as u64),
    ("retry_signatures_max", RETRY_SIGNATURES_MAX as u64),
];

#[cfg(test)]
mod tests {
    use super::TABLE;

    #[test]
    fn every_limit_is_in_the_table() {
        let written = include_str!("limits.rs").lines().filter_map(|line| line.strip_prefix("pub const "));
        let names: Vec<String> =
            written.filter_map(|rest| Some(rest.split_once(": ")?.0.to_ascii_lowercase())).collect();
        let mut missing: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| *name != "table").collect();
        missing.retain(|name| TABLE.iter().filter(|(shown, _)| shown == name).count() != 1);
        assert!(missing.is_empty(), "not in the table once: {missing:?}");
        assert_eq!(TABLE.len() + 1, names.len(), "the table has others");
    }

    #[test]
    fn the_limits_are_as_written() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../specs/limits.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let wrong: Vec<_> = TABLE
            .iter()
            .map(|(name, value)| format!("| `{name}` | {value} |"))
            .filter(|row| !page.contains(row))
            .collect();
        assert!(wrong.is_empty(), "not in specs/limits.md: {wrong:#?}");
        assert_eq!(page.matches("\n| `").count(), TABLE.len(), "the page has others");
    }
}
