use std::path::Path;

use model::Timestamp;
use rpc::TlsFiles;
use workflow::Json;
use workflow::manifest::{self, ManifestDefinition};
use workflow::provider::{EffectProvider as Defined, ProviderTransport};

use super::*;
use crate::providers::SentFlag;

const LABEL: &str =
    "name: label\nenv: { SIZE: small }\njobs:\n  label: { script_type: shell, script: 'true' }\n";
const COMMAND: &str = "018f4d2e-7a1b-7c3d-8e4f-0123456789ab";

fn defined() -> Defined {
    let text = "kind: EffectProvider\nname: labels\ntransport: flow\n\
        flow: { actor: 1, signing_key: \"secret:actor-1\" }\neffects:\n  make-label:\n    flow_file: label.yaml\n    env:\n      \
        ORDER: \"${{ input.order_id }}\"\n      COUNT: \"${{ input.count }}\"\n      LINES: \"${{ input.lines }}\"\n      \
        SIZE: \"${{ input.size }}\"\n      ID: \"of ${{ command_id }}\"\n";
    let documents = manifest::read("t", text).unwrap_or_else(|problems| panic!("{problems}"));
    let [manifest::ManifestDocument { definition: ManifestDefinition::Provider(provider), .. }] =
        documents.as_slice()
    else {
        panic!("no provider")
    };
    (**provider).clone()
}

fn written(text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("label.yaml"), text).expect("written");
    dir
}

fn call(input: Json) -> ProviderCall {
    ProviderCall {
        tenant: "acme".parse().expect("a tenant"),
        command: COMMAND.parse().expect("a command"),
        effect: Arc::clone(&defined().effects[0]),
        input: Arc::new(input),
        traceparent: None,
        callback_token: None,
        sent: SentFlag::default(),
    }
}

/// Returns the error for a bad flow file, without its directory.
fn refused(text: &str) -> String {
    let dir = written(text);
    let refused = FlowFiles::read(&defined().effects, dir.path()).expect_err("it is bad").to_string();
    refused.replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn flow_files_are_checked_when_they_are_loaded() {
    let dir = written(LABEL);
    let effects = defined().effects;
    let files = FlowFiles::read(&effects, dir.path()).expect("it is good");
    let file = files.of(&effects[0].name).expect("read");
    assert_eq!(
        (file.spec.nodes.len(), file.spec.env_vars["SIZE"].as_str()),
        (1, ""),
        "the name is checked as set"
    );
    let nowhere = FlowFiles::read(&effects, Path::new("/nowhere")).expect_err("there is none").to_string();
    assert!(nowhere.starts_with("/nowhere/label.yaml: cannot be read"), "{nowhere}");
    for (text, expected) in [
        ("name: a\njobs:\n  b: { script_type: shell }\n", "label.yaml:3:"),
        ("name: a\njobs:\n  b: { script_type: shell, script: x, depends: [c] }\n", "label.yaml:3:"),
        ("name: a\ncontext: 7\njobs:\n  b: { script_type: shell, script: x }\n", "label.yaml:2:10: "),
    ] {
        let refused = refused(text);
        assert!(refused.starts_with(expected), "{refused}");
    }
    let elsewhere = refused("name: a\ncontext: 7\njobs:\n  b: { script_type: shell, script: x }\n");
    assert!(elsewhere.contains("leave `context` out"), "{elsewhere}");
    let large = format!("name: a\njobs:\n{}", large_jobs());
    assert!(refused(&large).ends_with("has at most 3145728 bytes"), "{}", refused(&large));
}

/// Jobs that do not fit into one call.
fn large_jobs() -> String {
    let job = |n| format!("  j{n}: {{ script_type: shell, script: '{n}{}' }}\n", "x".repeat(15_000));
    (0..250).map(job).collect()
}

#[test]
fn variables_are_texts_and_those_without_a_value_are_left_to_the_flow() {
    let input = Json::object([
        ("order_id", Json::text("o-1")),
        ("count", Json::Int(3)),
        ("lines", Json::List(vec![Json::text("a"), Json::Bool(true)])),
    ]);
    let call = call(input);
    let CallKind::Flow(flow) = &call.effect.call else { panic!("a flow") };
    let variables = file::variables(&call, flow).expect("all have answers");
    let wanted =
        [("COUNT", "3"), ("ID", &format!("of {COMMAND}")), ("LINES", r#"["a",true]"#), ("ORDER", "o-1")];
    assert_eq!(
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect::<Vec<_>>(),
        wanted
    );
    let wrong = super::tests::call(Json::Int(1));
    assert!(file::variables(&wrong, flow).is_err(), "a number has no fields");
}

#[test]
fn request_ids_are_relied_on_for_less_than_they_are_kept() {
    let command: CommandId = COMMAND.parse().expect("a command");
    let at = |secs: u64| command.time() + Duration::from_secs(secs);
    assert!(is_remembered(command, command.time()) && is_remembered(command, at(23 * 3600 - 1)));
    assert!(!is_remembered(command, at(23 * 3600)));
    // The clocks disagree by more than the allowed skew: the age of the command is unknown.
    let before = Timestamp::from_millis(command.time().as_millis() - 3_600_000);
    assert!(!is_remembered(command, before));
}

fn provider(address: &str, secrets: &Path, context: Option<u32>) -> FlowProvider {
    let defined = defined();
    let ProviderTransport::Flow(transport) = &defined.transport else { panic!("a flow") };
    let dir = written(LABEL);
    let files = FlowFiles::read(&defined.effects, dir.path()).expect("it is good");
    let channel = Channel::remote(address, &TlsFiles::none().in_mesh(), None).expect("an address");
    let around = EffectFlowEnvironment {
        scheduler: channel.clone(),
        storage: channel,
        trust_domain: TrustDomain::default(),
        secrets: Arc::new(Secrets::in_directory(secrets)),
        context_of: Arc::new(move |_| context.map(ContextId)),
        notify: Arc::new(|_, _| panic!("nothing has ended")),
    };
    FlowProvider::new(transport, files, around)
}

/// Makes a call that is not sent; returns the reason.
async fn unsent(provider: &FlowProvider, call: &ProviderCall) -> String {
    let answer = provider.call(call).await;
    let ProviderAnswer::Passing { why, .. } = answer else { panic!("{answer:?}") };
    assert!(!call.sent.is_raised(), "{why}");
    why
}

#[tokio::test]
async fn what_cannot_be_submitted_now_was_not_sent() {
    let call = call(Json::object([]));
    let dir = tempfile::tempdir().expect("a directory");
    // No server listens at port 1.
    let away = "http://127.0.0.1:1";
    let none = unsent(&provider(away, dir.path(), None), &call).await;
    assert_eq!(none, "the tenant `acme` has no context");
    let keyless = unsent(&provider(away, dir.path(), Some(7)), &call).await;
    assert!(keyless.contains("the key of actor 1 cannot be used: the secret `secret:actor-1`"), "{keyless}");
    let key = dir.path().join("actor-1");
    identity::SigningKey::generate().write(&key).expect("written");
    let away = provider(away, dir.path(), Some(7));
    let why = unsent(&away, &call).await;
    assert!(why.starts_with("flows cannot be watched: UNAVAILABLE"), "{why}");
    assert_eq!(away.ask(&call).await, None, "nobody can be asked");
}

#[tokio::test]
async fn a_key_that_is_none_is_named_and_not_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("actor-1"), "canary").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(dir.path().join("actor-1"), mode).expect("it is ours");
    let why = unsent(&provider("http://127.0.0.1:1", dir.path(), Some(7)), &call(Json::object([]))).await;
    assert!(
        why.contains("`secret:actor-1` holds no Ed25519 private key") && !why.contains("canary"),
        "{why}"
    );
}
