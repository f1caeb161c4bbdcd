//! Where values of secrets come from, and that they go nowhere else.

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use model::TenantId;
use saga::secrets::{SecretError, Secrets};
use service::error_chain;
use workflow::provider::SecretName;

use crate::stage::{CANARY, Stage, tenant};

thread_local! {
    /// Log of this thread, from the first request for it on.
    static LOG: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Everything that this thread logs. All threads share one subscriber: separate ones would decide for each other which events are of
/// interest.
pub(crate) struct Logs(());

struct Writer;

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.as_mut().map(|log| log.extend_from_slice(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Logs {
    pub(crate) fn record() -> Self {
        static SUBSCRIBED: Once = Once::new();
        SUBSCRIBED.call_once(|| {
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_ansi(false)
                .with_writer(|| Writer)
                .init();
        });
        LOG.set(Some(Vec::new()));
        Self(())
    }

    pub(crate) fn text(&self) -> String {
        LOG.with_borrow(|log| String::from_utf8_lossy(log.as_deref().unwrap_or_default()).into_owned())
    }
}

fn name(text: &str) -> SecretName {
    SecretName::read(text).expect("a name")
}

#[test]
fn a_tenant_has_its_own_before_that_of_all() {
    let stage = Stage::new();
    stage.keep("key", "of all");
    stage.keep("acme/key", "of acme");
    let secrets = Secrets::in_directory(stage.directory());
    let read =
        |tenant: &TenantId| secrets.read(tenant, &name("secret:key")).expect("a secret").expose().to_owned();
    assert_eq!(read(&tenant("acme")), "of acme");
    assert_eq!(read(&tenant("other")), "of all");
    assert_eq!(read(&TenantId::single()), "of all");
    stage.keep("acme/key", "of acme, new");
    assert_eq!(read(&tenant("acme")), "of acme, new");
}

#[test]
fn secret_errors_name_the_file_and_never_the_secret() {
    let stage = Stage::new();
    stage.keep("empty", "");
    stage.keep("acme/open", CANARY);
    stage.keep("open", "of all");
    stage.set_mode("acme/open", 0o644);
    stage.keep("folder/x", CANARY);
    let secrets = Secrets::in_directory(stage.directory());
    let directory = stage.directory().display();
    for (secret, parts) in [
        ("none", vec![format!("{directory}/acme/none or {directory}/none")]),
        ("empty", vec!["is empty".to_owned()]),
        // Not that of all in its place.
        ("open", vec![format!("{directory}/acme/open"), "can be read by every user".to_owned()]),
        ("folder", vec![format!("{directory}/folder"), "directory".to_owned()]),
    ] {
        let secret = format!("secret:{secret}");
        let error = secrets.read(&tenant("acme"), &name(&secret)).expect_err(&secret);
        let text = error_chain(&error);
        for part in parts.iter().chain([&secret]) {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!format!("{text} {error:?}").contains(CANARY), "{text}");
    }
}

#[test]
fn a_secret_is_never_shown() {
    let stage = Stage::new();
    let secrets = Secrets::in_directory(stage.directory());
    let secret = secrets.read(&tenant("acme"), &name("secret:token")).expect("a secret");
    assert_eq!(secret.expose(), CANARY);
    assert_eq!(format!("{secret:?} {secret:#?}"), "Secret(…) Secret(…)");
    assert!(!format!("{secrets:?}").contains(CANARY));
}

#[test]
fn secrets_are_read_from_the_environment_without_a_directory() {
    let error = Secrets::in_environment().read(&tenant("acme"), &name("secret:no-such-token"));
    let error = error.expect_err("nobody set it");
    assert!(
        matches!(&error, SecretError::NoVariable { variable, .. } if variable == "MYCORA_SECRET_NO_SUCH_TOKEN")
    );
}

#[test]
fn names_lead_to_no_other_place() {
    for text in ["secret:../x", "secret:a/b", "secret:", "secret:.", "secret:a b", "pay-token"] {
        assert_eq!(SecretName::read(text), None, "{text}");
    }
}
