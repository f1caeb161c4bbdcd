//! The records of a supervisor's Redis: what instances, old workers and old dispatchers write.

use keys::{ControlScope, InstanceRef, LegacyJob, LegacyQueue, WorkQueue};
use kv::{StreamEntry, Value};
use model::id::Uid;
use model::{ContextUid, ScriptType};
use queue::fuzzing::{
    command, event, event_data, job, job_fields, job_state, needed_blobs, old_end, old_job,
};
use queue::{PopBinding, PresenceRecord, SupervisorDrain};

use crate::input::{Input, join};
use crate::{Target, Verdict};

/// The reader of a supervisor's records.
pub const TARGET: Target = Target { name: "queue_record", run, seeds, dictionary: DICTIONARY };

const DICTIONARY: &[&str] = &[
    "key",
    "n",
    "coordinator",
    "context_id",
    "flow_id",
    "data",
    "{\"kind\":\"started\",\"instance\":\"shell:default:1\",\"time\":1800000000.5}",
    "{\"kind\":\"log\",\"offset\":0,\"text\":\"a\"}",
    "{\"kind\":\"returned\"}",
    "{\"kind\":\"ended\",\"outcome\":\"lost\",\"end_time\":1800000001}",
    "{\"command\":\"stop\",\"job_key\":\"",
    "{\"command\":\"drain\",\"deadline_secs\":5}",
    "00000000000000000000000000000007-00000000000000000000000000000001-1-1",
    "1800000000.125",
    "queued",
    "started",
    "finished",
    "a=1\nb=2",
    "{\"a\":null}",
    "job",
    "large",
    "shell",
    "job:1:2",
    "hero:q:",
    "null",
    "{}",
    "[]",
    "\n",
];

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let known = match input.choice(10) {
        0 => is_event(input),
        1 => is_state(input),
        2 => is_job(input),
        3 => command(value(input.part())).is_some_and(|read| {
            let json = serde_json::to_vec(&read).expect("a command is JSON");
            assert_eq!(command(Value::Bytes(json)), Some(read), "it changes on its way");
            true
        }),
        4 => {
            let text = |part: &[u8]| (!part.is_empty()).then(|| String::from_utf8_lossy(part).into_owned());
            needed_blobs(text(input.part()), text(input.part())).is_ok()
        }
        5 => old_end(several(input, 8)).is_ok(),
        6 => is_old_job(input),
        7 => is_presence(input.rest()),
        8 => serde_json::from_slice::<SupervisorDrain>(input.rest()).is_ok(),
        _ => is_name(&input.text()),
    };
    if known { Verdict::Accepted } else { Verdict::Refused }
}

/// A part as Redis answers it: nothing, a number, or bytes.
fn value(part: &[u8]) -> Value {
    match part {
        b"" => Value::Nil,
        [b'#', digits @ ..] => {
            let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            number.map_or(Value::Array(Vec::new()), Value::Int)
        }
        bytes => Value::Bytes(bytes.to_vec()),
    }
}

/// So many answers where there are enough parts.
fn several(input: Input<'_>, count: usize) -> Value {
    let mut values: Vec<_> = input.parts().into_iter().map(value).collect();
    if !values.is_empty() && values.len() < count {
        values.resize(count, Value::Bytes(Vec::new()));
    }
    Value::Array(values)
}

fn is_event(input: Input<'_>) -> bool {
    let parts = input.parts();
    let field = |pair: &[&[u8]]| (String::from_utf8_lossy(pair[0]).into_owned(), pair[1].to_vec());
    let fields = parts.chunks_exact(2).map(field).collect();
    let entry = StreamEntry { id: "1-0".to_owned(), fields };
    // What `XREADGROUP` gives, in the forms of both versions of the protocol.
    let fields = entry.fields.iter().flat_map(|(name, value)| [name.clone().into_bytes(), value.clone()]);
    let fields = Value::Array(fields.map(Value::Bytes).collect());
    let answer = Value::Array(vec![
        Value::Bytes(b"hero:done".to_vec()),
        Value::Array(vec![Value::Array(vec![Value::Bytes(b"1-0".to_vec()), fields])]),
    ]);
    let streams = answer.streams().expect("a stream with an entry");
    assert_eq!(streams[0].1.as_slice(), std::slice::from_ref(&entry));
    let Ok(read) = event(&entry) else { return false };
    let data = event_data(&read.kind).expect("what was read can be written");
    let fields = entry.fields.iter().map(|(name, value)| {
        let value = if name == "data" { data.clone().into_bytes() } else { value.clone() };
        (name.clone(), value)
    });
    let again = event(&StreamEntry { id: entry.id.clone(), fields: fields.collect() });
    assert_eq!(again.as_ref(), Ok(&read), "it changes when it is written again");
    true
}

fn is_state(input: Input<'_>) -> bool {
    let mut values: Vec<_> = input.parts().into_iter().map(value).collect();
    values.resize(6, Value::Nil);
    job_state(Value::Array(values)).is_ok_and(|state| state.is_some())
}

fn is_job(mut input: Input<'_>) -> bool {
    let (text, script, grants) = (input.text(), input.text(), input.text());
    let grants = (!grants.is_empty()).then_some(&*grants);
    let Ok((execution, grants)) = job(&text, script.clone().into_owned(), grants) else { return false };
    let fields = job_fields(execution.clone(), &grants).expect("what was read can be written");
    let field = |name: &str| fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    let [Some(job_json), Some(script), grants_json] = ["job", "script", "grants"].map(field) else {
        panic!("a field is missing: {fields:?}");
    };
    let again = job(job_json, script.to_owned(), grants_json).expect("as it was written");
    let unsigned = model::Execution { signature: None, ..execution };
    assert_eq!(again, (unsigned, grants), "it changes when it is written again");
    true
}

fn is_old_job(mut input: Input<'_>) -> bool {
    let queue = if input.choice(2) == 0 { "queue:x" } else { "hero:work_queue:x" };
    let from = PopBinding {
        queue: LegacyQueue::parse(queue).expect("an old queue"),
        script_type: ScriptType::Shell,
        context: ContextUid(Uid::from_bits(7)),
    };
    match old_job(&from, several(input, 8)) {
        Ok(Ok(execution)) => {
            let grants = model::Grants::default();
            job_fields(execution, &grants).expect("what was taken in can be written");
            true
        }
        Ok(Err(why)) => {
            assert!(!why.is_empty(), "refused without a word");
            false
        }
        Err(_) => false,
    }
}

fn is_presence(json: &[u8]) -> bool {
    let Ok(record) = serde_json::from_slice::<PresenceRecord>(json) else { return false };
    let json = serde_json::to_vec(&record).expect("what was read can be written");
    assert_eq!(serde_json::from_slice::<PresenceRecord>(&json).ok(), Some(record), "it changes");
    true
}

/// The names of keys, each of which has one spelling.
fn is_name(text: &str) -> bool {
    let mut known = 0;
    let mut same = |written: String| {
        known += 1;
        assert_eq!(written, text, "one name has two spellings");
    };
    LegacyQueue::parse(text).into_iter().for_each(|name| same(name.to_string()));
    WorkQueue::parse(text).into_iter().for_each(|name| same(name.to_string()));
    InstanceRef::parse(text).into_iter().for_each(|name| same(name.to_string()));
    ControlScope::parse(text).into_iter().for_each(|name| same(name.to_string()));
    for queue in ["queue:x", "hero:work_queue:x"] {
        let queue = LegacyQueue::parse(queue).expect("an old queue");
        let name = |job: LegacyJob| if queue.is_numbered() { job.hash() } else { job.id() };
        LegacyJob::parse(&queue, text).into_iter().for_each(|job| same(name(job)));
    }
    known > 0
}

fn seeds() -> Vec<Vec<u8>> {
    let key = "00000000000000000000000000000007-00000000000000000000000000000001-1-1";
    let hash = "ab".repeat(32);
    let time = "1800000000.125";
    let end =
        r#"{"kind":"ended","outcome":"succeeded","result":{"a":"b"},"outputs":{},"end_time":1800000001.25}"#;
    let event = |data: &str| {
        let fields =
            ["key", key, "n", "1", "coordinator", "c", "context_id", "1", "flow_id", "1", "data", data];
        join(&[0], &fields)
    };
    let job = format!(
        r#"{{"job_key":"{key}","context_id":1,"flow_id":1,"caller_id":3,"flow_name":"f","node":"n","script_type":"python","script":{{"inline":""}},"files":{{"in":{{"sha256":"{hash}","size":2}}}},"timeout_secs":60,"priority":1}}"#
    );
    let presence = r#"{"pid":1,"process_start":2,"hostname":"h","started_at":1800000000,"version":"1","capabilities":["shell"],"last_heartbeat":1800000001.5,"slots":1,"busy":0,"isolation":"confined","layers":["seccomp"],"life":"x"}"#;
    vec![
        event(r#"{"kind":"log","offset":0,"text":"a"}"#),
        event(end),
        event(r#"{"kind":"returned"}"#),
        join(&[1], &["finished", &hash, "shell:default:1", time, "#7", end]),
        join(&[2], &[&job, "print(1)", "{}"]),
        join(&[2], &[&job, "print(1)", ""]),
        join(&[3], &[format!(r#"{{"command":"stop","job_key":"{key}","grace_secs":5}}"#)]),
        join(&[3], &[r#"{"command":"drain"}"#]),
        join(&[4], &[&job, end]),
        join(&[5], &[key, "finished", time, "printed", "#7", "a=1\nb=2", "#7", ""]),
        join(&[5], &[key, "error", time, "printed", "#7", "{\"a\":1}", "#7", "why"]),
        join(&[6, 0], &["job:1:2", "job", "shell", "60", "3", "", "true", r#"{"A":1}"#]),
        join(&[6, 1], &["x", "job", "shell", "", "", "", "true", ""]),
        join(&[7], &[presence]),
        join(&[8], &[r#"{"since":1800000000,"deadline":null}"#]),
        join(&[9], &["hero:work_queue:x"]),
        join(&[9], &["shell:default:1"]),
        join(&[9], &["hero:q:ctl:type:shell:group:g:inst:1"]),
        join(&[9], &["job:1:2"]),
    ]
}
