//! Reads the record that a legacy worker wrote as the end of an attempt.

use std::collections::BTreeMap;

use kv::{Error, Result, Script, ScriptCall, Value};
use model::execution::{AttemptEnd, Outcome};
use model::flow::ResultMap;
use model::limits::RESULT_BYTES_MAX;
use model::{Reason, ReasonCode, Timestamp};
use serde_json::value::RawValue;

use crate::event::{LogChunk, QueueEventKind, encode};
use crate::instance::tail;
use crate::job::QueueJobStatus;

/// The key of a result that is only a text.
const OUTPUT_KEY: &str = "output";
/// The longest key of a result.
const KEY_BYTES_MAX: usize = 256;

/// A job that an old worker has ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LegacyJobEnd {
    key: String,
    succeeded: bool,
    started_at: Timestamp,
    /// The end of what it printed, of `printed` bytes altogether.
    output: String,
    printed: u64,
    /// Nothing when it is too long to be read; then there are `result_bytes` of it.
    result: String,
    result_bytes: u64,
    error: String,
}

impl LegacyJobEnd {
    pub(crate) fn from_value(value: Value) -> Result<Self> {
        let [key, status, started_at, output, printed, result, result_bytes, error] = value.tuple()?;
        let started_at = started_at.text()?;
        let started_at =
            started_at.parse().map_err(|_| Error::Protocol(format!("`{started_at}` is no time")))?;
        Ok(Self {
            key: key.text()?,
            succeeded: status.text()? == "finished",
            started_at,
            output: any_text(output)?,
            printed: printed.uint()?,
            result: any_text(result)?,
            result_bytes: result_bytes.uint()?,
            error: any_text(error)?,
        })
    }

    /// Ends the job in the name of its worker; a job that ended otherwise stays as it is.
    pub(crate) fn finish_call(&self, script: &'static Script, worker: &str) -> Result<ScriptCall> {
        let log = self.log();
        let end = self.end(worker);
        let status = QueueJobStatus::of(end.outcome).as_str();
        let reason = end.reason.as_ref().map(ToString::to_string).unwrap_or_default();
        let result = serde_json::to_string(&end.result)
            .map_err(|error| Error::Protocol(format!("a result cannot be written: {error}")))?;
        let event = encode(&QueueEventKind::Ended(Box::new(end)))?;
        let (log_offset, log) = match log {
            None => (0, String::new()),
            Some(piece) => (piece.end(), encode(&QueueEventKind::Log(piece))?),
        };
        let call = script.call::<&str>(&[]).named(kv::named![
            key: &self.key,
            instance: worker,
            status: status,
            event: &event,
            log_offset: log_offset,
            log: &log,
        ]);
        Ok(call.args(["result", &result, "output", tail(&self.output), "error", &reason]))
    }

    fn log(&self) -> Option<LogChunk> {
        let offset = self.printed.saturating_sub(self.output.len() as u64);
        (!self.output.is_empty()).then(|| LogChunk { offset, text: self.output.clone(), time: None })
    }

    fn end(&self, worker: &str) -> AttemptEnd {
        let result = if self.succeeded { self.result() } else { Err(self.failure()) };
        let (outcome, result, reason) = match result {
            Ok(result) => (Outcome::Succeeded, result, None),
            Err(reason) => (Outcome::Failed, ResultMap::new(), Some(reason)),
        };
        AttemptEnd {
            outcome,
            exit_code: None,
            reason,
            result,
            outputs: BTreeMap::new(),
            output_bytes: self.log().map_or(0, |piece| piece.end()),
            ended: Vec::new(),
            instance: Some(worker.to_owned()),
            start_time: Some(self.started_at),
            end_time: Timestamp::now(),
        }
    }

    fn failure(&self) -> Reason {
        let why = self.error.trim();
        let why = if why.is_empty() { "the old worker did not say why" } else { why };
        Reason::new(ReasonCode::RuntimeError, why.chars().take(1000).collect::<String>())
    }

    /// Returns the job's result, or the tail of its output when it wrote no result.
    fn result(&self) -> std::result::Result<ResultMap, Reason> {
        if self.result_bytes > self.result.len() as u64 {
            return Err(too_large(self.result_bytes));
        }
        if self.result.trim().is_empty() {
            let output = tail(&self.output);
            return Ok(if output.is_empty() { ResultMap::new() } else { only_text(output) });
        }
        let result = object(&self.result)
            .or_else(|| lines(&self.result))
            .unwrap_or_else(|| only_text(self.result.trim_end_matches('\n')));
        let size = serde_json::to_string(&result).map_or(usize::MAX, |json| json.len());
        if size > RESULT_BYTES_MAX { Err(too_large(size as u64)) } else { Ok(result) }
    }
}

fn too_large(bytes: u64) -> Reason {
    let detail = format!("the result has {bytes} bytes, the limit is {RESULT_BYTES_MAX}");
    Reason::new(ReasonCode::ResultTooLarge, detail)
}

fn only_text(text: &str) -> ResultMap {
    ResultMap::from([(OUTPUT_KEY.to_owned(), text.to_owned())])
}

/// One JSON object; texts of it as they are, everything else as it is written.
fn object(text: &str) -> Option<ResultMap> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(text.trim()).ok()?;
    let value = |raw: &RawValue| match raw.get() {
        "null" => String::new(),
        text if text.starts_with('"') => serde_json::from_str(text).unwrap_or_default(),
        other => other.to_owned(),
    };
    members.into_iter().map(|(key, raw)| is_key(&key).then(|| (key, value(raw)))).collect()
}

/// `key=value` in each line.
fn lines(text: &str) -> Option<ResultMap> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let pair = |line: &str| {
        let (key, value) = line.split_once('=')?;
        let key = key.trim();
        // A sentence with a sign in it is no pair.
        (is_key(key) && !key.contains(char::is_whitespace)).then(|| (key.to_owned(), value.to_owned()))
    };
    lines.map(pair).collect()
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.len() <= KEY_BYTES_MAX && !key.chars().any(char::is_control)
}

/// Whatever an old worker wrote; bytes that are not UTF-8 are replaced.
pub(crate) fn any_text(value: Value) -> Result<String> {
    Ok(String::from_utf8_lossy(&value.bytes()?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(result: &str, output: &str) -> LegacyJobEnd {
        LegacyJobEnd {
            key: String::new(),
            succeeded: true,
            started_at: Timestamp::from_millis(1),
            output: output.into(),
            printed: output.len() as u64,
            result: result.into(),
            result_bytes: result.len() as u64,
            error: String::new(),
        }
    }

    #[test]
    fn what_a_result_may_look_like() {
        for (result, output, expected) in [
            (
                "{\"a\": \"x\\ny\", \"n\": 12345678901234567890.50, \"z\": null, \"l\": [1]}",
                "",
                "a=x\ny|l=[1]|n=12345678901234567890.50|z=",
            ),
            ("a=1\n\nb = 2\n", "", "a=1|b= 2"),
            ("so it = that\n", "", "output=so it = that"),
            ("{not json", "", "output={not json"),
            ("plain\n", "printed", "output=plain"),
            ("", "a=1\n", "output=a=1\n"),
            ("  ", "", ""),
        ] {
            let map = ended(result, output).result().expect("a result");
            let shown: Vec<_> = map.iter().map(|(key, value)| format!("{key}={value}")).collect();
            assert_eq!(shown.join("|"), expected, "{result}");
        }
    }

    #[test]
    fn what_goes_wrong_has_a_reason() {
        let huge = format!("{{\"a\":\"{}\"}}", "x".repeat(RESULT_BYTES_MAX));
        let unread = LegacyJobEnd { result_bytes: 1 << 30, ..ended("", "") };
        for end in [ended(&huge, ""), unread] {
            assert_eq!(end.end("w").reason.expect("a reason").code, ReasonCode::ResultTooLarge);
        }
        let failed = LegacyJobEnd { succeeded: false, error: " no such file\n".into(), ..ended("a=1", "") };
        let end = failed.end("w");
        assert_eq!((end.outcome, end.result.len()), (Outcome::Failed, 0));
        assert_eq!(end.reason.expect("a reason").to_string(), "RUNTIME_ERROR: no such file");
    }

    #[test]
    fn long_output_is_reported_by_its_tail_and_its_offset() {
        let end = LegacyJobEnd { printed: 100, ..ended("", "the end") };
        assert_eq!(end.log(), Some(LogChunk { offset: 93, text: "the end".into(), time: None }));
        assert_eq!(end.end("w").output_bytes, 100);
        assert_eq!((ended("", "").log(), ended("", "").end("w").output_bytes), (None, 0));
    }
}
