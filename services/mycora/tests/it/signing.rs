//! Jobs that are signed before they are handed to a coordinator.

use std::collections::BTreeMap;

use envelope::actor::{JobTerms, SignedJob, check_terms};
use identity::SigningKey;
use model::flow::EnvVars;
use model::{ActorId, JobSpec, NodePolicy, ScriptSource, ScriptType, Timestamp};

use crate::commands::CommandFixture;
use crate::coordinator::CoordinatorScript;
use crate::coordinator::storage::CONTEXT_UID;
use crate::stderr;

const FLOW: &str = "\
name: f
env: { LANG: C, YEAR: '2014' }
jobs:
  a: { script_type: shell, script: 'echo a > part.txt', outputs: [part.txt] }
  b: { script_type: shell, script: 'cat part.txt', depends: [a], env: { A: '${{ results.a.n }}' }, timeout: 9, network: true }
";
const KEY_FILE: &str = "actor-1.ed25519";

/// Sets up a user with a key, a flow file and a coordinator.
fn place() -> (CommandFixture, SigningKey) {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    std::fs::write(place.home.path().join("f.yaml"), FLOW).expect("written");
    let key = SigningKey::load_or_make(&place.home.path().join(KEY_FILE)).expect("a key");
    (place, key)
}

fn env(variables: &[(&str, &str)]) -> EnvVars {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn signatures(place: &CommandFixture) -> BTreeMap<String, String> {
    place.coordinator.recorded(|recorded| recorded.signatures.clone())
}

/// Returns the signer of these terms, and for how many days the signature holds.
fn signed(signature: &str, terms: &JobTerms) -> (String, u64) {
    let now = Timestamp::now();
    let SignedJob { signer, expires, .. } = check_terms(signature, terms, now).expect("it fits");
    (signer.to_string(), (expires.since(now).as_secs() + 3600) / (24 * 3600))
}

/// The job `b` of the flow, for this actor and with these variables of the flow.
fn job_b(caller: u32, flow_env: &EnvVars) -> JobTerms {
    let job = JobSpec {
        script_type: ScriptType::Shell,
        script: ScriptSource::Inline("cat part.txt".to_owned()),
        env_vars: env(&[("A", "${{ results.a.n }}")]),
        files: BTreeMap::new(),
        outputs: Vec::new(),
        signature: None,
    };
    let policy = NodePolicy { timeout: 9, network: true, ..NodePolicy::default() };
    let place = (CONTEXT_UID.parse().expect("a uid"), ActorId(caller));
    JobTerms::of_job(&job, &policy, flow_env, ["part.txt".to_owned()].into(), place)
}

#[test]
fn a_submitted_flow_is_signed_job_by_job() {
    let (place, key) = place();
    let name = key.verifying_key().to_string();
    place.run_command(&["flow", "submit", "f.yaml"], 0);
    assert!(signatures(&place).values().all(String::is_empty), "nobody signs by accident");

    place.run_command(&["flow", "submit", "f.yaml", "--signing-key", KEY_FILE, "--env", "YEAR=2015"], 0);
    let signatures_then = signatures(&place);
    assert_eq!(signatures_then.keys().collect::<Vec<_>>(), ["a", "b"]);
    let terms = job_b(1, &env(&[("LANG", "C"), ("YEAR", "2015")]));
    assert_eq!(signed(&signatures_then["b"], &terms), (name.clone(), 30));

    let short = ["flow", "submit", "f.yaml", "--signing-key", KEY_FILE, "--signature-holds", "2d"];
    place.run_command(&short, 0);
    let terms = job_b(1, &env(&[("LANG", "C"), ("YEAR", "2014")]));
    assert_eq!(signed(&signatures(&place)["b"], &terms), (name, 2));
}

#[test]
fn jobs_that_run_again_are_signed_as_the_flow_file_describes() {
    let (place, key) = place();
    let retry = |more: &[&str], code| {
        place.run_command(&[&["flow", "retry", "12", "--signing-key", KEY_FILE], more].concat(), code)
    };
    let output = retry(&["--file", "f.yaml", "--env", "YEAR=2016", "--unset", "LANG"], 0);
    assert!(!stderr(&output).contains("PRIVATE"), "{}", stderr(&output));
    let signatures = signatures(&place);
    assert_eq!(signatures.keys().collect::<Vec<_>>(), ["b"], "only what runs again");
    // The flow is another actor's, who holds the key.
    let terms = job_b(7, &env(&[("YEAR", "2016")]));
    assert_eq!(signed(&signatures["b"], &terms), (key.verifying_key().to_string(), 30));

    assert!(stderr(&retry(&[], 2)).contains("--signing-key needs --file"));
    std::fs::write(place.home.path().join("f.yaml"), FLOW.replace("  b:", "  c:")).expect("written");
    let printed = stderr(&retry(&["--file", "f.yaml"], 2));
    assert!(printed.contains("`b` is run again, and the flow file has no such job"), "{printed}");
}

#[test]
fn one_job_is_signed_too() {
    let (place, key) = place();
    let job = ["job", "run", "--type", "shell", "--script", "true", "--name", "good", "--detach"];
    place.run_command(&[&job[..], &["--signing-key", KEY_FILE]].concat(), 0);
    let spec = JobSpec {
        script_type: ScriptType::Shell,
        script: ScriptSource::Inline("true".to_owned()),
        env_vars: EnvVars::new(),
        files: BTreeMap::new(),
        outputs: Vec::new(),
        signature: None,
    };
    let context = (CONTEXT_UID.parse().expect("a uid"), ActorId(1));
    let terms = JobTerms::of_job(&spec, &NodePolicy::default(), &EnvVars::new(), [].into(), context);
    assert_eq!(signed(&signatures(&place)["good"], &terms).0, key.verifying_key().to_string());
}

#[test]
fn what_cannot_be_signed_is_not_submitted() {
    let (place, _) = place();
    for (arguments, code, message) in [
        (&["--signing-key", "none.key"][..], 2, "none.key"),
        (&["--signing-key", "f.yaml"], 2, "f.yaml holds no Ed25519 private key"),
        (&["--signing-key", KEY_FILE, "--context", "3"], 1, "context 3 was not found"),
        (&["--signature-holds", "2d"], 2, "--signing-key <FILE>"),
        (&["--signing-key", KEY_FILE, "--signature-holds", "400d"], 2, "366 days at most"),
    ] {
        let printed = stderr(&place.run_command(&[&["flow", "submit", "f.yaml"], arguments].concat(), code));
        assert!(printed.contains(message), "{arguments:?}: {printed}");
    }
    assert!(place.coordinator.recorded(|recorded| recorded.request_ids.is_empty()));
}
