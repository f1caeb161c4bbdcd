//! The Lua scripts: each is one change of state.
//!
//! A script is given every key it touches, checks everything first and writes last, since Redis does
//! not undo the writes of a script that fails. It refuses with `CODE message`.
//!
//! Shared parts precede the script: `prelude` for every change of a context, `flows`, `references`, `messages`, `snapshot`,
//! `importing` and `checking` for scripts of their kind, `global` for changes outside contexts.

use kv::Script;

/// Sources of a script: the parts that it begins with, and the script itself.
macro_rules! parts {
    ([$($part:literal),+], $file:literal) => {
        &[$(include_str!(concat!("scripts/", $part, ".lua")),)+ include_str!(concat!("scripts/", $file, ".lua"))]
    };
}

macro_rules! scripts {
    ($($parts:tt: $($(#[$doc:meta])* $name:ident = $file:literal),+;)+) => {
        $($(
            $(#[$doc])*
            pub(crate) static $name: Script = Script::new($file, parts!($parts, $file));
        )+)+
    };
}

scripts! {
    ["prelude", "flows"]:
        ADD_NODES = "add_nodes",
        START_FLOW = "start_flow",
        TAKE_FLOW = "take_flow",
        PUSH_INPUT = "push_input",
        BEGIN_REMOVAL = "begin_removal",
        CREATE_JOB = "create_job",
        DELETE_JOB = "delete_job",
        COUNT_KEPT = "count_kept",
        LIST_FLOWS = "list_flows",
        MEASURE_FLOWS = "measure_flows";
    ["prelude", "flows", "references"]:
        EXPIRE_FLOWS = "expire_flows";
    ["prelude", "flows", "messages"]:
        CREATE_FLOW = "create_flow",
        RESTART_FLOW = "restart_flow",
        COMMIT = "commit",
        END_REMOVAL = "end_removal";
    ["prelude", "messages"]:
        RESERVE_MESSAGES = "reserve_messages",
        PUBLISH_LETTER = "publish_letter",
        ACCEPT_LETTER = "accept_letter",
        ACKNOWLEDGE = "acknowledge",
        REMOVE_MESSAGE = "remove_message",
        EXPIRE_MESSAGES = "expire_messages",
        RESEND = "resend",
        SETTLE = "settle",
        TAKE_OUT = "take_out",
        TAKE_HELD = "take_held",
        TAKE_RAW = "take_raw";
    ["prelude"]:
        FORGET_FLOW = "forget_flow",
        AWAIT_FLOW = "await_flow",
        AUTHORIZE = "authorize",
        REMOVE_RECORDS = "remove_records",
        RENEW_HOLDS = "renew_holds",
        APPEND_LOG = "append_log",
        PUT_BLOB = "put_blob",
        COLLECT_BLOBS = "collect_blobs",
        TRIM = "trim",
        PUT_RUNNER = "put_runner",
        CHANGE_RUNNER = "change_runner",
        CREATE_CONTEXT = "create_context",
        UPDATE_CONTEXT = "update_context",
        BEGIN_CONTEXT_REMOVAL = "begin_context_removal",
        CONTEXT_DROPPED = "context_dropped",
        REMOVE_KEYS = "remove_keys",
        EMPTY_CONTEXT = "empty_context",
        END_CONTEXT_REMOVAL = "end_context_removal",
        FREEZE_CONTEXT = "freeze_context",
        THAW_CONTEXT = "thaw_context",
        BEGIN_IMPORT = "begin_import",
        ABANDON_IMPORT = "abandon_import";
    ["prelude", "snapshot"]:
        KEEP_SNAPSHOT = "keep_snapshot",
        EXPORT_PAGE = "export_page";
    ["prelude", "importing"]:
        IMPORT_RECORDS = "import_records",
        END_IMPORT = "end_import";
    ["prelude", "flows", "checking"]:
        CHECK_FLOWS = "check_flows",
        CHECK_DUE = "check_due";
    ["prelude", "flows", "references", "checking"]:
        CHECK_ORPHANS = "check_orphans";
    ["prelude", "messages", "checking"]:
        CHECK_MESSAGES = "check_messages",
        CHECK_ENTRIES = "check_entries";
    ["prelude", "checking"]:
        CHECK_NODES = "check_nodes",
        CHECK_BLOB = "check_blob",
        CHECK_RUNNERS = "check_runners",
        CHECK_COUNT = "check_count",
        CHECK_GIVEN_IDS = "check_given_ids";
    ["global", "checking"]:
        CHECK_ACTORS = "check_actors";
    ["global"]:
        LEASE = "lease",
        REGISTER_ACTOR = "register_actor",
        CHANGE_ACTOR = "change_actor",
        DELETE_ACTOR = "delete_actor",
        RESERVE_CONTEXT = "reserve_context",
        TRIM_GLOBAL = "trim_global",
        ASK_CONTEXT_REMOVAL = "ask_context_removal",
        PUBLISH_CONTEXT = "publish_context",
        SPEND_TOKEN = "spend_token",
        UNPUBLISH_CONTEXT = "unpublish_context",
        MARK_REMOVAL = "mark_removal",
        FORGET_REMOVAL = "forget_removal",
        RESERVE_IMPORT = "reserve_import",
        FORGET_IMPORT = "forget_import",
        NOTE_REPAIR = "note_repair";
}

#[cfg(test)]
mod tests {
    use model::limits;

    #[test]
    fn what_messages_have_in_common_knows_our_limits() {
        let messages_in_lua = include_str!("scripts/messages.lua");
        let (messages, bytes, done) = (limits::INBOX_MAX, limits::INBOX_BYTES_MAX, limits::MESSAGES_DONE_MAX);
        for line in [
            format!("local INBOX_MAX, INBOX_BYTES_MAX = {messages}, {bytes}\n"),
            format!("local DONE_MAX = {done}\n"),
        ] {
            assert!(messages_in_lua.contains(&line), "{line}");
        }
    }
}
