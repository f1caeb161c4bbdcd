//! An actor's signature over a job, held against the terms of the job that is here, and against an attempt.

use ::envelope::actor::{JOB_TYPE, JobTerms, check_job, check_terms};
use ::envelope::{Envelope, Refusal};
use bytes::Bytes;
use model::{BlobHash, Execution};
use serde_json::Value;

use super::NOW;
use crate::input::{Input, join};
use crate::keys::key;
use crate::{Target, Verdict, check_refusal};

/// The reader of signatures over jobs.
pub const TARGET: Target = Target { name: "job_signature", run, seeds, dictionary: DICTIONARY };

const DICTIONARY: &[&str] = &[
    "\"job\":",
    "\"nonce\":\"",
    "\"expires\":",
    "\"context_uid\"",
    "\"caller_id\"",
    "\"script_type\"",
    "\"script_sha256\"",
    "\"files\":{",
    "\"received\":[",
    "\"env_vars\":{",
    "\"outputs\":[",
    "\"timeout\"",
    "\"network\"",
    "\"isolation\"",
    "\"python\"",
    "\"shell\"",
    "\"basic\"",
    "\"confined\"",
    "\"out.txt\"",
    "\"part.txt\"",
    "true",
    "false",
    "null",
    "{}",
    "[]",
    ",",
];
/// Value of a variable, which must not stand in a refusal.
const SECRET: &str = "a-variable-that-nobody-is-told";

fn run(data: &[u8]) -> Verdict {
    let mut input = Input::new(data);
    let way = input.choice(4);
    let (statement, here) = (input.part(), input.part());
    if way == 0 {
        // Whatever it is, as a signature.
        let terms: Option<JobTerms> = serde_json::from_slice(here).ok();
        let Some(terms) = terms else { return Verdict::Refused };
        let text = String::from_utf8_lossy(statement);
        return Verdict::of(&check_terms(&text, &terms, NOW).map_err(|refusal| check_refusal_text(&refusal)));
    }
    let signature = Envelope::sign(JOB_TYPE, Bytes::copy_from_slice(statement), key(0)).to_json();
    let signature = String::from_utf8_lossy(&signature).into_owned();
    if way == 1 {
        let Ok(execution) = serde_json::from_slice::<Execution>(here) else { return Verdict::Refused };
        let execution = Execution { signature: Some(signature), ..execution };
        let checked = check_job(&execution, NOW).map_err(|refusal| check_refusal_text(&refusal));
        if checked.is_ok() {
            let other = Execution { timeout_secs: execution.timeout_secs ^ 1, ..execution };
            assert!(check_job(&other, NOW).is_err(), "another timeout was signed");
        }
        return Verdict::of(&checked);
    }
    // The terms that are here are those that were signed, unless others are given.
    let signed = || serde_json::from_slice::<Value>(statement).ok()?.get("job").cloned();
    let here = match (here.is_empty(), serde_json::from_slice(here)) {
        (true, _) => signed().and_then(|job| serde_json::from_value(job).ok()),
        (false, here) => here.ok(),
    };
    let Some(here) = here else { return Verdict::Refused };
    let checked = check_terms(&signature, &here, NOW).map_err(|refusal| check_refusal_text(&refusal));
    if let Ok(checked) = &checked {
        assert_eq!(checked.signer, key(0).verifying_key());
        assert!(checked.expires > NOW, "it was over");
        each_term_counts(&signature, &here);
    }
    Verdict::of(&checked)
}

/// Another job than the one that was signed is refused.
fn each_term_counts(signature: &str, here: &JobTerms) {
    let mut others = vec![here.clone(); 6];
    others[0].script_sha256 = BlobHash::of(b"another script");
    others[1].network = !here.network;
    others[2].timeout ^= 1;
    others[3].env_vars.insert("ANOTHER".to_owned(), "x".to_owned());
    others[4].outputs.push("another".to_owned());
    others[5].files.insert("another".to_owned(), BlobHash::of(b"another file"));
    for other in &others {
        // The signature may name a file that is not here, and no more.
        assert!(check_terms(signature, other, NOW).is_err(), "{other:?} was not signed");
    }
}

fn check_refusal_text(refusal: &Refusal) {
    // Errors that name only a field; errors about unreadable input quote it.
    let secrets: &[&str] =
        if matches!(refusal, Refusal::OtherContent(field) if field == "env_vars") { &[SECRET] } else { &[] };
    check_refusal(&refusal.to_string(), 512, secrets);
}

fn seeds() -> Vec<Vec<u8>> {
    let hash = BlobHash::of(b"print(1)");
    let file = BlobHash::of(b"in");
    let terms = format!(
        r#"{{"context_uid":"00000000000000000000000000000007","caller_id":3,"script_type":"python","script_sha256":"{hash}","files":{{"in.txt":"{file}"}},"received":["part.txt"],"env_vars":{{"A":"{SECRET}"}},"outputs":["out.txt"],"timeout":60,"network":true,"isolation":"confined"}}"#
    );
    let statement =
        format!(r#"{{"job":{terms},"nonce":"0000000000000000000000000000000a","expires":1800003600000}}"#);
    let execution = format!(
        r#"{{"job_key":"00000000000000000000000000000007-00000000000000000000000000000001-1-1","context_id":1,"flow_id":1,"caller_id":3,"flow_name":"f","node":"n","script_type":"python","script":{{"inline":"print(1)"}},"env_vars":{{"A":"{SECRET}"}},"files":{{"in.txt":{{"sha256":"{file}","size":2}}}},"outputs":["out.txt"],"timeout_secs":60,"priority":1,"isolation":"confined","network":true}}"#
    );
    let signature = Envelope::sign(JOB_TYPE, Bytes::from(statement.clone()), key(0)).to_json();
    let signature = String::from_utf8_lossy(&signature).into_owned();
    vec![
        join(&[0], &[signature, terms.clone()]),
        join(&[1], &[statement.clone(), execution]),
        join(&[2], &[statement.clone(), String::new()]),
        join(&[3], &[statement.clone(), terms.replace("true", "false")]),
        join(&[2], &[statement.replace("1800003600000", "1700000000000"), String::new()]),
    ]
}
