use model::execution::FileSource;
use model::id::Uid;
use model::job::BlobRef;
use model::{
    ActorId, Attempt, BlobHash, ContextId, ContextUid, DirectMessage, DirectMessageOrigin, Execution, FlowId,
    FlowUid, Isolation, JobId, JobKey, JobSpec, MessageFormat, MessageId, MessageType, NodePolicy,
    ScriptSource, ScriptType,
};
use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);
const CONTEXT: ContextUid = ContextUid(Uid::from_bits(7));
const CALLER: ActorId = ActorId(3);

fn message(key: &SigningKey, to: &str, topic: &str, text: &str) -> DirectMessage {
    let (message_type, format) = (MessageType::Chat, MessageFormat::Md);
    let terms = DirectMessageTerms { to, target_context: None, message_type, format, topic, text };
    DirectMessage {
        origin: DirectMessageOrigin {
            coordinator: "00".repeat(32),
            context_uid: CONTEXT,
            caller_id: CALLER,
            message_id: MessageId(1),
        },
        from: key.verifying_key().to_string(),
        to: to.to_owned(),
        target_context: None,
        message_type,
        format,
        topic: topic.to_owned(),
        text: text.to_owned(),
        created_at: NOW,
        expires_at: NOW + HOUR,
        signature: Some(sign_direct_message(&terms, key, NOW + HOUR)),
    }
}

fn blob(bytes: &[u8]) -> BlobRef {
    BlobRef { sha256: BlobHash::of(bytes), size: bytes.len() as u64 }
}

fn spec() -> JobSpec {
    JobSpec {
        script_type: ScriptType::Python,
        script: ScriptSource::Inline("print(1)".to_owned()),
        env_vars: [("A".to_owned(), "${{ results.first.n }}".to_owned())].into(),
        files: [("data/in.txt".to_owned(), blob(b"in"))].into(),
        outputs: vec!["out.txt".to_owned()],
        signature: None,
    }
}

fn terms(spec: &JobSpec) -> JobTerms {
    let flow_env = [("A".to_owned(), "0".to_owned()), ("B".to_owned(), "1".to_owned())].into();
    let policy =
        NodePolicy { timeout: 60, network: true, isolation: Isolation::Confined, ..NodePolicy::default() };
    JobTerms::of_job(spec, &policy, &flow_env, ["part.txt".to_owned()].into(), (CONTEXT, CALLER))
}

/// An attempt of [`spec`] in a flow with a dependency that made a file.
fn execution(signature: Option<String>) -> Execution {
    let spec = spec();
    let file = |bytes: &[u8]| FileSource { blob: blob(bytes), inline: None };
    Execution {
        context_id: ContextId(1),
        flow_id: FlowId(1),
        caller_id: CALLER,
        env_vars: terms(&spec).env_vars,
        files: [("data/in.txt".to_owned(), file(b"in")), ("part.txt".to_owned(), file(b"made"))].into(),
        outputs: spec.outputs,
        timeout_secs: 60,
        isolation: Isolation::Confined,
        network: true,
        signature,
        ..Execution::of_script(
            JobKey { context: CONTEXT, flow: FlowUid::random(), job: JobId(1), attempt: Attempt(1) },
            "flow".parse().expect("a name"),
            "node".parse().expect("a name"),
            spec.script_type,
            spec.script.clone(),
        )
    }
}

/// The field that another was signed for.
fn field<T: std::fmt::Debug>(checked: Result<T, Refusal>) -> String {
    match checked {
        Err(Refusal::OtherContent(field)) => field,
        other => format!("{other:?}"),
    }
}

#[test]
fn a_letter_is_its_senders() {
    let [key, other] = [(); 2].map(|()| SigningKey::generate());
    let to = SigningKey::generate().verifying_key().to_string();
    let message = message(&key, &to, "greeting", "hello");
    let signed = check_direct_message(&message, NOW).expect("it fits").expect("it is signed");
    assert_eq!((signed.signer, signed.expires), (key.verifying_key(), NOW + HOUR));
    let again = DirectMessage { created_at: NOW + HOUR, ..message.clone() };
    assert_eq!(
        check_direct_message(&again, NOW).expect("it fits").expect("it is signed"),
        signed,
        "the same letter"
    );
    assert_eq!(check_direct_message(&DirectMessage { signature: None, ..message.clone() }, NOW), Ok(None));
    let stolen = DirectMessage { from: other.verifying_key().to_string(), ..message.clone() };
    assert!(matches!(check_direct_message(&stolen, NOW), Err(Refusal::OtherActor { .. })));
    let refused = |message: DirectMessage| field(check_direct_message(&message, NOW));
    assert_eq!(refused(DirectMessage { to: message.from.clone(), ..message.clone() }), "to");
    assert_eq!(refused(DirectMessage { message_type: MessageType::Mail, ..message.clone() }), "type");
    assert_eq!(refused(DirectMessage { format: MessageFormat::Html, ..message.clone() }), "format");
    assert_eq!(refused(DirectMessage { topic: String::new(), ..message.clone() }), "topic");
    let elsewhere = DirectMessage { target_context: Some(ContextId(2)), ..message.clone() };
    assert_eq!(refused(elsewhere.clone()), "target_context");
    let terms = DirectMessageTerms {
        to: &message.to,
        target_context: Some(ContextId(2)),
        message_type: message.message_type,
        format: message.format,
        topic: &message.topic,
        text: &message.text,
    };
    let signature = Some(sign_direct_message(&terms, &key, NOW + HOUR));
    assert!(check_direct_message(&DirectMessage { signature: signature.clone(), ..elsewhere }, NOW).is_ok());
    assert_eq!(refused(DirectMessage { signature, ..message.clone() }), "target_context", "not at home");
    assert_eq!(refused(DirectMessage { text: "hullo".to_owned(), ..message }), "text");
}

#[test]
fn a_job_is_what_was_signed() {
    let key = SigningKey::generate();
    let signature = sign_job(&terms(&spec()), &key, NOW + HOUR);
    let signed = check_job(&execution(Some(signature.clone())), NOW).expect("it fits").expect("it is signed");
    assert_eq!((signed.signer, signed.expires), (key.verifying_key(), NOW + HOUR));
    assert_eq!(check_terms(&signature, &terms(&spec()), NOW), Ok(signed), "as it was submitted");
    assert_eq!(check_job(&execution(None), NOW), Ok(None));

    let refused = |change: &dyn Fn(&mut Execution)| {
        let mut changed = execution(Some(signature.clone()));
        change(&mut changed);
        field(check_job(&changed, NOW))
    };
    let file = || FileSource { blob: blob(b"other"), inline: None };
    assert_eq!(refused(&|job| job.job_key.context = ContextUid::random()), "context_uid");
    assert_eq!(refused(&|job| job.caller_id = ActorId(4)), "caller_id");
    assert_eq!(refused(&|job| job.script_type = ScriptType::Rhai), "script_type");
    assert_eq!(refused(&|job| job.script = ScriptSource::Inline("print(2)".to_owned())), "script");
    assert_eq!(refused(&|job| job.script = ScriptSource::Blob(blob(b"other"))), "script");
    assert_eq!(refused(&|job| drop(job.env_vars.insert("C".into(), String::new()))), "env_vars");
    assert_eq!(refused(&|job| drop(job.env_vars.remove("B"))), "env_vars");
    assert_eq!(refused(&|job| job.outputs.clear()), "outputs");
    assert_eq!(refused(&|job| job.timeout_secs = 0), "timeout");
    assert_eq!(refused(&|job| job.network = false), "network");
    assert_eq!(refused(&|job| job.isolation = Isolation::Basic), "isolation");
    assert_eq!(refused(&|job| drop(job.files.insert("data/in.txt".into(), file()))), "files[data/in.txt]");
    assert_eq!(refused(&|job| drop(job.files.remove("data/in.txt"))), "files[data/in.txt]");
    // Python would import it.
    assert_eq!(refused(&|job| drop(job.files.insert("json.py".into(), file()))), "files[json.py]");

    // Data, and fields that may be carried in another way.
    let mut carried = execution(Some(signature));
    carried.script = ScriptSource::Blob(blob(b"print(1)"));
    carried.files.insert("part.txt".into(), file());
    carried.inputs.insert("first".parse().expect("a name"), [("n".into(), "2".into())].into());
    carried.job_key.attempt = Attempt(2);
    assert_eq!(check_job(&carried, NOW), Ok(Some(signed)));
    carried.files.remove("part.txt");
    assert_eq!(check_job(&carried, NOW), Ok(Some(signed)), "a dependency may fail");
}

#[test]
fn what_a_job_receives_is_signed_with_it() {
    let signature = sign_job(&terms(&spec()), &SigningKey::generate(), NOW + HOUR);
    let mut more = terms(&spec());
    more.received.insert("late.txt".to_owned());
    assert_eq!(field(check_terms(&signature, &more, NOW)), "files[late.txt]");
}

#[test]
fn signatures_hold_for_their_time() {
    let key = SigningKey::generate();
    let job =
        |expires: Timestamp| check_terms(&sign_job(&terms(&spec()), &key, expires), &terms(&spec()), NOW);
    let days = |days: u64| NOW + HOUR * 24 * u32::try_from(days).expect("few");
    assert_eq!(job(NOW), Err(Refusal::Expired(NOW)));
    assert!(job(days(366)).is_ok());
    assert_eq!(job(days(367)), Err(Refusal::BadTimes));
    let sent = message(&key, &key.verifying_key().to_string(), "", "");
    assert_eq!(check_direct_message(&sent, NOW + HOUR), Err(Refusal::Expired(NOW + HOUR)));
    let long = DirectMessageTerms {
        to: &sent.to,
        target_context: None,
        message_type: sent.message_type,
        format: sent.format,
        topic: "",
        text: "",
    };
    let long = DirectMessage { signature: Some(sign_direct_message(&long, &key, days(7))), ..sent.clone() };
    assert_eq!(check_direct_message(&long, NOW), Err(Refusal::BadTimes));
}

#[test]
fn nothing_else_passes_for_a_signature() {
    let key = SigningKey::generate();
    let sent = message(&key, &key.verifying_key().to_string(), "", "");
    let of_message = sent.signature.clone().expect("it is signed");
    let other_type = check_job(&execution(Some(of_message)), NOW);
    assert!(matches!(other_type, Err(Refusal::OtherType(_))), "{other_type:?}");
    let with = |payload: &str| {
        let envelope = Envelope::sign(DIRECT_MESSAGE_TYPE, payload.to_owned().into(), &key).to_json();
        let signature = Some(String::from_utf8_lossy(&envelope).into_owned());
        check_direct_message(&DirectMessage { signature, ..sent.clone() }, NOW)
    };
    let all = serde_json::json!({
        "id": "0".repeat(32), "to": sent.to, "type": "chat", "format": "md", "topic": "",
        "text_sha256": BlobHash::of(b""), "expires": (NOW + HOUR).as_millis(),
    });
    assert!(with(&all.to_string()).is_ok());
    let mut more = all.clone();
    more["priority"] = 1.into();
    assert!(matches!(with(&more.to_string()), Err(Refusal::Malformed(_))), "a field that nobody knows");
    for field in ["id", "to", "type", "format", "topic", "text_sha256", "expires"] {
        let mut less = all.clone();
        less.as_object_mut().expect("an object").remove(field);
        assert!(matches!(with(&less.to_string()), Err(Refusal::Malformed(_))), "without {field}");
    }
    let mut odd = all;
    odd["id"] = "1".into();
    assert!(matches!(with(&odd.to_string()), Err(Refusal::Malformed(_))), "no id");
    let long = DirectMessage { signature: Some(" ".repeat(limits::SIGNATURE_BYTES_MAX + 1)), ..sent };
    assert!(matches!(check_direct_message(&long, NOW), Err(Refusal::Malformed(_))));
}

proptest! {
    #[test]
    fn any_text_is_no_signature(text in ".{0,200}") {
        prop_assert!(check_job(&execution(Some(text)), NOW).is_err());
    }

    #[test]
    fn any_letter_can_be_signed(topic: String, text: String) {
        let key = SigningKey::generate();
        let sent = message(&key, &key.verifying_key().to_string(), &topic, &text);
        prop_assert!(matches!(check_direct_message(&sent, NOW), Ok(Some(_))));
        let other = DirectMessage { text: format!("{text}."), ..sent };
        prop_assert_eq!(field(check_direct_message(&other, NOW)), "text");
    }

    #[test]
    fn any_job_can_be_signed(
        script in ".{1,50}",
        env: std::collections::BTreeMap<String, String>,
        outputs: Vec<String>,
        timeout: u32,
        network: bool,
    ) {
        let spec = JobSpec {
            script: ScriptSource::Inline(script), env_vars: env, outputs, ..spec()
        };
        let policy = NodePolicy { timeout, network, ..NodePolicy::default() };
        let terms = JobTerms::of_job(&spec, &policy, &[].into(), [].into(), (CONTEXT, CALLER));
        let signature = sign_job(&terms, &SigningKey::generate(), NOW + HOUR);
        if signature.len() <= limits::SIGNATURE_BYTES_MAX {
            prop_assert!(check_terms(&signature, &terms, NOW).is_ok());
        }
        let other = JobTerms { network: !network, ..terms };
        prop_assert_eq!(field(check_terms(&signature, &other, NOW)), "network");
    }

    /// Whatever byte of it is changed: it says the same by the same key, or nothing.
    #[test]
    fn a_changed_signature_verifies_as_before_or_not_at_all(at: prop::sample::Index, byte: u8) {
        let key = SigningKey::generate();
        let signature = sign_job(&terms(&spec()), &key, NOW + HOUR);
        let signed = check_terms(&signature, &terms(&spec()), NOW).expect("it fits");
        let mut changed = signature.into_bytes();
        let at = at.index(changed.len());
        changed[at] = byte;
        if let Ok(again) = check_terms(&String::from_utf8_lossy(&changed), &terms(&spec()), NOW) {
            prop_assert_eq!(again, signed);
        }
    }
}
