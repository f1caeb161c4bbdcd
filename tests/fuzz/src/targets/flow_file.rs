//! Flow files: YAML that people write.

use flow_file::{FileRoot, FlowFile, FlowFileSource, node_batches};
use model::Violation;
use prost::Message as _;
use proto::convert::flow_spec;
use proto::v1;

use crate::input::{Input, join};
use crate::{Target, Verdict};

/// The reader of flow files.
pub const TARGET: Target = Target { name: "flow_file", run, seeds, dictionary: DICTIONARY };

const FILES: FileRoot =
    FileRoot::Embedded(&[("book.txt", b"words"), ("big.py", &[b'#'; 20_000]), ("binary", &[0xff, 0xfe])]);
const DICTIONARY: &[&str] = &[
    "name: f\n",
    "jobs:\n",
    "  a:\n",
    "  b:\n",
    "    script_type: shell\n",
    "    script: 'true'\n",
    "    script_file: big.py\n",
    "    created_job: 7\n",
    "    files: { a: book.txt }\n",
    "    outputs: [x]\n",
    "    depends: [a]\n",
    "    dependends: [a]\n",
    "    run_if: ALL_DONE\n",
    "    when: results.a.n > 1\n",
    "    prerequisites: [signal:go]\n",
    "    allow_failure: true\n",
    "    timeout: 5\n",
    "    timeout_queue: 5\n",
    "    retries: 2\n",
    "    backoff: { initial: 0.5, multiplier: 2, max: 9 }\n",
    "    no_retry_exit_codes: [2]\n",
    "    priority: 0\n",
    "    isolation: confined\n",
    "    network: true\n",
    "    env: { A: \"${{ results.a.n }}\" }\n",
    "    target: { runner: 1, group: g, instance: 1, labels: { z: a } }\n",
    "context: 1\n",
    "env: { A: b }\n",
    "fail_fast: true\n",
    "deadline: 60\n",
    "cancel_timeout: 5\n",
    "python",
    "rhai",
    "&x ",
    "*x",
    "<<: *x\n",
    "!!int ",
    "!!binary ",
    "!t ",
    "---\n",
    "...\n",
    "? ",
    ": ",
    "- ",
    "|\n",
    ">-\n",
    "\"",
    "'",
    "[",
    "]",
    "{",
    "}",
    "# ",
    "%YAML 1.2\n",
    "~",
    ".nan",
    ".inf",
    "0x1f",
    "1_000",
    "after:2026-01-01T00:00:00Z",
    "\t",
    "\n",
    "  ",
];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let text = input.text().into_owned();
    let env: Vec<_> = input
        .parts()
        .chunks_exact(2)
        .map(|pair| {
            let text = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
            (text(pair[0]), text(pair[1]))
        })
        .collect();
    let parse = || {
        let source = FlowFileSource { name: "f.yaml".to_owned(), text: text.clone(), files: FILES };
        FlowFile::parse(source, &env)
    };
    let lines = u64::try_from(text.split(['\n', '\r']).count()).unwrap_or(u64::MAX);
    match parse() {
        Err(problems) => {
            assert!(!problems.as_slice().is_empty(), "refused without a word");
            for problem in problems.as_slice() {
                assert!(!problem.message.is_empty(), "a problem without a word");
                if let Some(place) = problem.place {
                    let inside = (1..=lines.max(1) + 1).contains(&place.line) && place.column > 0;
                    assert!(inside, "{place:?} is no place among {lines} lines: {}", problem.message);
                }
            }
            assert!(problems.to_string().lines().count() > 0);
            Verdict::Refused
        }
        Ok(file) => {
            is_whole(&file);
            assert_eq!(parse().map(|again| again.spec).ok(), Some(file.spec), "two readings of one text");
            Verdict::Accepted
        }
    }
}

/// Asserts that a server takes the flow that is submitted.
fn is_whole(file: &FlowFile) {
    let wire = file.spec.encode_to_vec();
    let mut again = v1::FlowSpec::decode(wire.as_slice()).expect("as it was written");
    assert_eq!(again, file.spec, "it changes on its way");
    for node in &mut again.nodes {
        assert_eq!(
            node.created_job_id == 0,
            node.job.is_some(),
            "a job says what it executes, or names who does"
        );
        // A server puts what is kept in its place.
        if node.created_job_id != 0 {
            node.created_job_id = 0;
            node.job = Some(v1::JobSpec {
                script_type: v1::ScriptType::Shell.into(),
                script: Some(v1::Script { source: Some(v1::script::Source::Text("true".to_owned())) }),
                ..Default::default()
            });
        }
    }
    assert!(flow_spec::from_wire(again, "flow").is_ok(), "a server refuses what was checked");
    let sent: usize = node_batches(&file.spec.nodes).map(|(_, part)| part.len()).sum();
    assert_eq!(sent, file.spec.nodes.len(), "some jobs are in no part");
    for upload in &file.uploads {
        assert_eq!(upload.bytes(&file.files).expect("it is there").len() as u64, upload.blob.size);
    }
    for field in ["flow.name", "flow.nodes[0].job.script", "flow.nodes[99999].depends[7]", "[", ""] {
        let violation = Violation { field: field.to_owned(), description: "x".to_owned() };
        assert_eq!(file.locate(&[violation]).as_slice().len(), 1);
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let whole = r#"name: word-count
context: 7
env: { LANG: C.UTF-8, VERSION: 1.0, PORT: 8080, BIG: 18446744073709551616, FAR: 1e400 }
fail_fast: true
deadline: 600
cancel_timeout: 9
jobs:
  split: &base
    script_type: python
    script_file: big.py
    files: { book.txt: book.txt }
    outputs: [part_a.txt]
    timeout: 30
  count-a:
    <<: *base
    dependends: [split]
    retries: 2
    backoff: { initial: 0.5, multiplier: 3, max: 10 }
    no_retry_exit_codes: [2, 64]
    isolation: confined
    network: true
    target: { group: gpu, instance: 1, labels: { zone: a } }
  report:
    script_type: shell
    depends: [count-a]
    run_if: ALL_DONE
    allow_failure: true
    priority: 0
    prerequisites: [signal:go, "after:2026-01-01T00:00:00Z", flow:7]
    when: results["count-a"].total > 0
    env: { TOTAL: "${{ results.count-a.total }}" }
    script: |
      echo "total=$TOTAL" >> "$MYCORA_RESULT"
"#;
    let small = "name: f\njobs:\n  a:\n    script_type: shell\n    script: 'true'\n";
    let kept =
        "name: f\njobs:\n  a: {created_job: 7, timeout: 5}\n  b: {created_job: 7, script: x, depends: [a]}\n";
    let json = r#"{"name": "f", "jobs": {"a": {"script_type": "shell", "script": "true", "timeout": 3}}}"#;
    let bomb = "x0: &x0 [a, a]\nx1: &x1 [*x0, *x0]\nx2: [*x1, *x1]\n";
    vec![
        join(&[], &[whole]),
        join(&[], &[small, "A", "1"]),
        join(&[], &[kept]),
        join(&[], &[&kept.replace(", script: x", "")]),
        join(&[], &[json]),
        join(&[], &[bomb]),
        join(&[], &["name: [f\njobs: 7\n"]),
        join(&[], &["name: f\njobs:\n  a: {script_type: shel, scrip: x, depends: [b]}\n"]),
    ]
}
