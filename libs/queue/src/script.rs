//! The scripts, each behind the names of keys and the prelude that they share, and some behind others as functions of their arguments.

use keys::supervisor::LUA_NAMES;
use kv::Script;

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $file:literal $(after $($piece:literal),+)? $(with $($part:literal),+)?;)+) => {
        $(
            $(#[$doc])*
            pub(crate) static $name: Script = Script::new(
                $file,
                &[
                    LUA_NAMES,
                    include_str!("scripts/prelude.lua"),
                    $($(include_str!(concat!("scripts/", $piece, ".lua")),)+)?
                    $($("local function ", $part, "(ARGV)\n", include_str!(concat!("scripts/", $part, ".lua")), "end\n",)+)?
                    include_str!(concat!("scripts/", $file, ".lua")),
                ],
            );
        )+
    };
}

scripts! {
    /// Takes a job in.
    ACCEPT = "accept" after "turns", "takers";
    /// Gives waiting jobs to an instance.
    TAKE = "take";
    /// Hands an instance nothing more.
    STOP_TAKING = "stop_taking";
    /// Returns the jobs that an instance has claimed.
    HELD = "held";
    /// Adds to a running job's log.
    LOG = "log";
    /// Ends a running job.
    FINISH = "finish";
    /// Ends a running job and gives its slot the next.
    FINISH_AND_TAKE = "finish_and_take" with "finish", "take";
    /// Stops a job wherever it is.
    STOP = "stop";
    /// Gives waiting jobs back.
    HAND_BACK = "hand_back";
    /// Ends waiting jobs that no instance can run.
    REFUSE_WAITING = "refuse_waiting";
    /// Puts jobs back that were popped and never claimed.
    PUT_BACK = "put_back";
    /// Makes an instance present.
    JOIN = "join";
    /// Keeps an instance present.
    REFRESH = "refresh";
    /// Makes an instance absent.
    LEAVE = "leave";
    /// Makes an instance absent whose process is dead.
    EXPEL = "expel";
    /// Ends what an instance had started.
    LOSE = "lose";
    /// Forgets events that the coordinator has.
    ACKNOWLEDGE = "acknowledge";
    /// Forgets attempts that have ended.
    FORGET = "forget";
    /// Forgets a context.
    DROP_CONTEXT = "drop_context";
    /// Forgets what happened in a context.
    DROP_EVENTS = "drop_events";
    /// Sends a job's state again.
    TELL_AGAIN = "tell_again";
    /// Looks after what old workers were given.
    SWEEP_OLD = "sweep_old";
    /// Returns the jobs that legacy dispatchers want to be run.
    LOOK_AT_OLD = "look_at_old";
    /// Takes in what an old dispatcher wants run.
    IMPORT = "import" after "turns";
    /// Refuses what an old dispatcher wants run.
    REFUSE_OLD = "refuse_old";
    /// Looks after a queue from which others take as well.
    SWEEP_OPEN = "sweep_open";
    /// Finds jobs that others pushed into a queue that no instance takes from.
    FIND_FOREIGN = "find_foreign";
    /// Records the node of a bus through which a coordinator is reached.
    NOTE_NODE = "note_node";
    /// Notes that a coordinator has another root.
    BEGIN_SUCCESSION = "begin_succession";
    /// Passes the bindings of a root on to its successor.
    SUCCEED = "succeed";
    /// Notes whose contexts are.
    INDEX = "index";
    /// Measures a queue.
    STATISTICS = "statistics";
}

#[cfg(test)]
mod tests {
    use keys::{legacy, supervisor as k};

    #[test]
    fn other_names_in_scripts_are_those_of_the_keys_crate() {
        let prelude = include_str!("scripts/prelude.lua");
        for (name, value) in [
            ("OPEN", k::OPEN_FIELD),
            ("NODE", k::NODE_FIELD_PREFIX),
            ("OLD_WORKER", legacy::OLD_WORKER_PREFIX),
        ] {
            let line = format!("local {name} = '{value}'\n");
            assert!(prelude.contains(&line), "{line}");
        }
        let scope =
            keys::ControlScope::Instance(keys::InstanceRef::parse("shell:g:1").expect("an instance's name"));
        assert_eq!(scope.to_string(), "hero:q:ctl:type:shell:group:g:inst:1");
        assert!(prelude.contains("'hero:q:ctl:type:' .. kind .. ':group:' .. group .. ':inst:' .. n"));
        let old_job = keys::LegacyJob::Id("x".parse().expect("an old id"));
        let [reply, other] = old_job.replies().map(|list| list.trim_end_matches('x').to_owned());
        assert_eq!(reply, k::REPLY);
        assert!(prelude.contains(&format!("{{REPLY .. id, '{other}' .. id}}")));
    }
}
