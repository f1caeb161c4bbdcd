//! Jobs that programs push to Redis, as the flow that they become.

use storage::fuzzing::raw_jobs;

use super::storage_record::hash;
use crate::input::{Input, join};
use crate::{Target, Verdict};

/// The reader of pushed jobs.
pub const TARGET: Target = Target { name: "raw_jobs", run, seeds, dictionary: DICTIONARY };

const DICTIONARY: &[&str] = &[
    "job",
    "jobs",
    "nodes",
    "timeout_result",
    "\"id\":1",
    "\"name\":\"a\"",
    "\"job\":{",
    "\"depends\":[1]",
    "\"dependends\":[\"a\"]",
    "\"prerequisites\":[\"signal:go\"]",
    "\"script_type\":\"shell\"",
    "\"script\":\"true\"",
    "\"script_size\":5",
    "\"sha256:",
    "\"env_vars\":{\"A\":\"b\"}",
    "\"files\":{}",
    "\"outputs\":[\"o\"]",
    "\"timeout\":5",
    "\"retries\":1",
    "\"policy\":{}",
    "\"run_if\":\"ALL_DONE\"",
    "\"allow_failure\":true",
    "\"target\":{}",
    "\"when\":\"true\"",
    "\"signature\":\"s\"",
    "\"caller_id\":3",
    "\"context_id\":1",
    "null",
    "[",
    "]",
    "{",
    "}",
    ",",
];

fn run(data: &[u8]) -> Verdict {
    let read = raw_jobs(&hash(Input::new(data)));
    match &read {
        Err(violations) => assert!(!violations.is_empty(), "refused without a word"),
        // Whether it is a valid graph is checked where the flow is made, which must be possible.
        Ok(spec) => drop(flow::Plan::of_specs(&spec.env_vars, &spec.nodes)),
    }
    Verdict::of(&read)
}

fn seeds() -> Vec<Vec<u8>> {
    let one = r#"{"id":1,"script_type":"shell","script":"true","timeout":5,"retries":1,"env_vars":{"A":"b"},"outputs":["o"],"caller_id":3,"context_id":0,"status":"new"}"#;
    let two = r#"[{"id":1,"script_type":"shell","script":"true"},{"id":2,"script_type":"python","script":"x","dependends":[1],"prerequisites":["signal:go"]}]"#;
    let nodes = r#"[{"name":"a","job":{"script_type":"shell","script":"true"}},{"name":"b","depends":["a"],"run_if":"ALL_DONE","allow_failure":true,"when":"true","job":{"id":7,"script_type":"shell","script":"true"}}]"#;
    vec![
        join(&[], &["job", one, "timeout_result", "60"]),
        join(&[], &["jobs", two]),
        join(&[], &["nodes", nodes]),
        join(&[], &["job", one, "jobs", two]),
        join(&[], &["job", "{\"id\":1,\"more\":2}"]),
    ]
}
