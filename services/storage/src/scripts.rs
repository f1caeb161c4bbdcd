//! The Lua scripts: each is one change of state.
//!
//! A script is given every key it touches, checks everything first and writes last, since Redis does
//! not undo the writes of a script that fails. It refuses with `CODE message`.

use kv::Script;

macro_rules! scripts {
    ($($prelude:literal: $($(#[$doc:meta])* $name:ident = $file:literal),+;)+) => {
        $($(
            $(#[$doc])*
            pub(crate) static $name: Script = Script::new(
                $file,
                concat!(include_str!(concat!("scripts/", $prelude, ".lua")), include_str!(concat!("scripts/", $file, ".lua"))),
            );
        )+)+
    };
}

scripts! {
    "prelude":
        CREATE_FLOW = "create_flow",
        ADD_NODES = "add_nodes",
        START_FLOW = "start_flow",
        TAKE_FLOW = "take_flow",
        RESTART_FLOW = "restart_flow",
        FORGET_FLOW = "forget_flow",
        PUSH_INPUT = "push_input",
        AWAIT_FLOW = "await_flow",
        AUTHORIZE = "authorize",
        COMMIT = "commit",
        RESERVE_MESSAGES = "reserve_messages",
        BEGIN_REMOVAL = "begin_removal",
        REMOVE_RECORDS = "remove_records",
        END_REMOVAL = "end_removal",
        PUBLISH_LETTER = "publish_letter",
        ACCEPT_LETTER = "accept_letter",
        ACKNOWLEDGE = "acknowledge",
        REMOVE_MESSAGE = "remove_message",
        RESEND = "resend",
        SETTLE = "settle",
        RENEW_HOLDS = "renew_holds",
        TAKE_OUT = "take_out",
        TAKE_HELD = "take_held",
        TAKE_RAW = "take_raw",
        APPEND_LOG = "append_log",
        CREATE_JOB = "create_job",
        DELETE_JOB = "delete_job",
        PUT_BLOB = "put_blob",
        COLLECT_BLOBS = "collect_blobs",
        COUNT_KEPT = "count_kept",
        LIST_FLOWS = "list_flows",
        TRIM = "trim",
        PUT_RUNNER = "put_runner",
        CHANGE_RUNNER = "change_runner",
        CREATE_CONTEXT = "create_context",
        UPDATE_CONTEXT = "update_context",
        BEGIN_CONTEXT_REMOVAL = "begin_context_removal",
        CONTEXT_DROPPED = "context_dropped",
        REMOVE_KEYS = "remove_keys",
        EMPTY_CONTEXT = "empty_context",
        END_CONTEXT_REMOVAL = "end_context_removal";
    "global":
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
        FORGET_REMOVAL = "forget_removal";
}

#[cfg(test)]
mod tests {
    use model::limits;

    #[test]
    fn the_prelude_knows_our_limits() {
        let prelude = include_str!("scripts/prelude.lua");
        let (messages, bytes, done) = (limits::INBOX_MAX, limits::INBOX_BYTES_MAX, limits::MESSAGES_DONE_MAX);
        for line in [
            format!("local INBOX_MAX, INBOX_BYTES_MAX = {messages}, {bytes}\n"),
            format!("local DONE_MAX = {done}\n"),
        ] {
            assert!(prelude.contains(&line), "{line}");
        }
    }
}
