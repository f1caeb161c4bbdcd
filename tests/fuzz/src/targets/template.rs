//! `${{ … }}` in environment values, rendered as where a job runs.

use std::collections::BTreeMap;

use flow::EnvTemplate;
use flow::template::render;
use model::id::Uid;
use model::limits::{ENV_RENDERED_BYTES_MAX, ENV_VALUE_RENDERED_BYTES_MAX};
use model::{
    ActorId, Attempt, ContextId, ContextUid, Execution, FlowId, FlowUid, JobId, JobKey, Name, ScriptSource,
    ScriptType,
};

use crate::input::{Input, join};
use crate::{Target, Verdict, check_refusal};

/// The reader of templates.
pub const TARGET: Target = Target { name: "template", run, seeds, dictionary: DICTIONARY };

/// Result of a node, which no refusal discloses.
const SECRET: &str = "what-the-node-has-found-out";
const DICTIONARY: &[&str] = &[
    "${{",
    "}}",
    "${{ results.first.n }}",
    "${{ results[\"first\"][\"a key\"] }}",
    "${{ flow.id }}",
    "${{ flow.uid }}",
    "${{ flow.name }}",
    "${{ flow.context_id }}",
    "${{ flow.caller_id }}",
    "results.",
    "flow.",
    "first",
    "second",
    "[\"",
    "\"]",
    ".n",
    ".long",
    "$",
    "{",
    "\u{e9}",
    " ",
];

fn run(data: &[u8]) -> Verdict {
    let input = Input::new(data);
    let values: Vec<_> =
        input.parts().into_iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    for value in &values {
        names_its_references(value);
    }
    let env = values.iter().enumerate().map(|(i, value)| (format!("V{i}"), value.clone())).collect();
    let execution = execution(env);
    let rendered = match render(&execution) {
        Ok(rendered) => rendered,
        Err(error) => {
            check_refusal(&error.reason().to_string(), 2048, &[SECRET]);
            return Verdict::Refused;
        }
    };
    assert_eq!(rendered.len(), values.len(), "a variable is gone");
    let total: usize = rendered.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(total <= ENV_RENDERED_BYTES_MAX, "{total} bytes");
    for (name, value) in &rendered {
        assert!(value.len() <= ENV_VALUE_RENDERED_BYTES_MAX, "{} bytes", value.len());
        let before = &execution.env_vars[name];
        assert!(before.contains("${{") || before == value, "{before} became {value}");
    }
    assert_eq!(render(&execution).as_ref(), Ok(&rendered), "two renderings of one environment");
    Verdict::Accepted
}

/// Each reference, written as it is shown to people, is that reference.
fn names_its_references(value: &str) {
    let template = match EnvTemplate::parse(value) {
        Ok(template) => template,
        Err(error) => return check_refusal(&error.to_string(), 512, &[]),
    };
    for reference in template.references() {
        let written = format!("${{{{ {reference} }}}}");
        // Keys that are long, or have characters that have to be shown some other way, are not written for machines.
        if written.contains(['\\', '…']) {
            continue;
        }
        let again = EnvTemplate::parse(&written).expect("a reference as it is written");
        assert_eq!(again.references().collect::<Vec<_>>(), [reference]);
    }
}

fn execution(env_vars: BTreeMap<String, String>) -> Execution {
    let name = |text: &str| text.parse::<Name>().expect("a name");
    let result = [("n", "7"), ("a key", SECRET), ("long", &"x".repeat(40_000))];
    let result = result.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    Execution {
        context_id: ContextId(3),
        flow_id: FlowId(4),
        caller_id: ActorId(5),
        env_vars,
        inputs: [(name("first"), result)].into(),
        ..Execution::of_script(
            JobKey {
                context: ContextUid(Uid::from_bits(1)),
                flow: FlowUid(Uid::from_bits(2)),
                job: JobId(7),
                attempt: Attempt(1),
            },
            name("demo"),
            name("report"),
            ScriptType::Shell,
            ScriptSource::Inline("true".to_owned()),
        )
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let all = "a${{flow.id}}/${{ flow.uid }}/${{ flow.name }}/${{flow.context_id}}/${{flow.caller_id}}";
    vec![
        join(&[], &["plain } }} $ {{ x }}", all]),
        join(&[], &["${{ results.first.n }}", "${{ results[\"first\"][\"a key\"] }}"]),
        join(&[], &["${{ results.second.n }}"]),
        join(&[], &["${{ results.first.long }}"]),
        join(&[], &["${{ results.first.long }}${{ results.first.long }}"]),
        join(&[], &["${{ results.first.other }}"]),
        join(&[], &["ab${{ flow.id }"]),
        join(&[], &["${{ flow.status }}"]),
    ]
}
