//! An execution in the parts in which it is kept.

use super::Execution;
use crate::id::BlobHash;
use crate::job::ScriptSource;

/// An execution as a supervisor keeps it: written once, for the record and for its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionRecord {
    /// The execution as JSON, without the text of its script and without the signature, which was checked.
    pub text: String,
    /// The script's text; of a script in a blob, the hash of that.
    pub script: String,
    /// The hash of the work: the SHA-256 of the execution's JSON with script and signature. Inlined bytes and the trace are
    /// not covered. A supervisor that knows the job key with another hash refuses the execution: an attempt never changes.
    pub hash: BlobHash,
}

impl ExecutionRecord {
    /// Writes an execution.
    ///
    /// # Errors
    /// When it cannot be written as JSON, which has not been seen.
    pub fn write(mut execution: Execution) -> Result<Self, serde_json::Error> {
        let (signature, traceparent) = (execution.signature.take(), execution.traceparent.take());
        let inline = match &mut execution.script {
            ScriptSource::Inline(text) => Some(std::mem::take(text)),
            ScriptSource::Blob(_) => None,
        };
        let text = serde_json::to_string(&execution)?;
        let bare = without_bytes(&execution).map(|bare| serde_json::to_string(&bare)).transpose()?;
        let hash = hash(bare.as_ref().unwrap_or(&text), inline.as_deref(), signature.as_deref())?;
        let script = match execution.script {
            ScriptSource::Inline(_) => inline.unwrap_or_default(),
            ScriptSource::Blob(blob) => blob.sha256.to_string(),
        };
        Ok(Self { text: with_last(text, "traceparent", traceparent.as_deref())?, script, hash })
    }

    /// Reads what [`write`](Self::write) has made of an execution, from its text and its script.
    ///
    /// # Errors
    /// When the text is no execution.
    pub fn read(text: &str, script: String) -> Result<Execution, serde_json::Error> {
        let mut execution: Execution = serde_json::from_str(text)?;
        if let ScriptSource::Inline(empty) = &mut execution.script {
            *empty = script;
        }
        Ok(execution)
    }
}

/// An execution without the bytes that came inline with its files; nothing where none did.
///
/// A supervisor stores such files as blobs before it writes the record, so a record with inlined bytes is rare.
fn without_bytes(execution: &Execution) -> Option<Execution> {
    execution.files.values().any(|file| file.inline.is_some()).then(|| {
        let mut bare = execution.clone();
        for file in bare.files.values_mut() {
            file.inline = None;
        }
        bare
    })
}

/// Hashes an execution's text as it is with its script and its signature.
fn hash(text: &str, script: Option<&str>, signature: Option<&str>) -> Result<BlobHash, serde_json::Error> {
    // The search cannot match inside a JSON text, whose quotation marks are escaped: the first match is the field.
    let before_script = "\"script\":{\"inline\":";
    let (before, script, after) = match (script, text.find(before_script)) {
        (Some(script), Some(at)) => {
            let (before, empty) = text.split_at(at + before_script.len());
            (before, serde_json::to_string(script)?, empty.trim_start_matches('"'))
        }
        _ => ("", String::new(), text),
    };
    let after = with_last(after.to_owned(), "signature", signature)?;
    Ok(BlobHash::of_parts(&[before.as_bytes(), script.as_bytes(), after.as_bytes()]))
}

/// Appends a field to the text of an object.
fn with_last(mut object: String, name: &str, value: Option<&str>) -> Result<String, serde_json::Error> {
    if let Some(value) = value {
        object.pop();
        object.push_str(&format!(",\"{name}\":{}}}", serde_json::to_string(value)?));
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execution::FileSource;
    use crate::job::BlobRef;

    /// Some bytes.
    fn blob() -> BlobRef {
        BlobRef { sha256: BlobHash::of(b"abc"), size: 3 }
    }

    fn execution() -> Execution {
        serde_json::from_value(serde_json::json!({
            "job_key": "00000000000000000000000000000001-00000000000000000000000000000002-3-1",
            "context_id": 1, "flow_id": 7, "caller_id": 1, "flow_name": "flow", "node": "node",
            "script_type": "shell", "script": { "inline": "" }, "timeout_secs": 60, "priority": 1,
        }))
        .expect("an execution")
    }

    /// Executions of every shape: with a script of each kind, signed, traced, with bytes that came inline.
    fn all() -> Vec<Execution> {
        let inline = ["", "echo \"ä\\n\"\n", "\"script\":{\"inline\":\"\"}"]
            .map(|text| ScriptSource::Inline(text.into()));
        let scripts = inline.into_iter().chain([ScriptSource::Blob(blob())]);
        let shapes = scripts.flat_map(|script| (0..16_u8).map(move |shape| (script.clone(), shape)));
        let made = shapes.map(|(script, shape)| {
            let with = |bit: u8| shape & (1 << bit) != 0;
            let mut made = Execution { script, ..execution() };
            made.signature = with(0).then(|| "{\"payload\":\"}\"}".to_owned());
            made.traceparent = with(1).then(|| "00-\"-01".to_owned());
            if with(2) {
                made.env_vars.insert("\"script\":{\"inline\":\"\"}".into(), "\"script\":{\"inline\":".into());
            }
            if with(3) {
                made.files.insert("a".into(), FileSource { blob: blob(), inline: Some("YWJj".into()) });
            }
            made
        });
        made.collect()
    }

    /// Leaves out of an execution the fields that its hash does not cover.
    fn bare(mut execution: Execution) -> Execution {
        execution.traceparent = None;
        for file in execution.files.values_mut() {
            file.inline = None;
        }
        execution
    }

    #[test]
    fn the_hash_is_that_of_the_whole_text() {
        for execution in all() {
            let whole = serde_json::to_vec(&bare(execution.clone())).expect("written");
            let record = ExecutionRecord::write(execution.clone()).expect("written");
            assert_eq!(record.hash, BlobHash::of(&whole), "{execution:?}");
        }
    }

    #[test]
    fn what_is_kept_is_read_as_it_was() {
        for execution in all() {
            let record = ExecutionRecord::write(execution.clone()).expect("written");
            let read = ExecutionRecord::read(&record.text, record.script).expect("read");
            let want = Execution { signature: None, ..execution };
            assert_eq!(read, want);
            assert_eq!(record.text, serde_json::to_string(&without_script(want)).expect("written"));
        }
    }

    fn without_script(mut execution: Execution) -> Execution {
        if let ScriptSource::Inline(text) = &mut execution.script {
            text.clear();
        }
        execution
    }
}
