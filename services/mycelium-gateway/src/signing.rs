//! Signing files of the gateway: its key, the certificate of the coordinator's root for it, and the root rotations that led to
//! that root. The files are read again when they change.
//!
//! Unusable files never take effect: at the start they are an error, later the previous contents stay. Another key or
//! certificate of the same root is shown with the next statement, and nothing else changes. With another root the
//! coordinator has another identity for its peers, so that conversations start over, with the changes that lead to it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use envelope::files::{ROOT_CHANGE_FILE, read_changes};
use envelope::{EnvelopeSigner, Sealer, SigningFiles, SigningFilesError};
use identity::VerifyingKey;
use model::supervision::{CoordinatorSucceed, CoordinatorSucceeded, method};
use mycelium::json_rpc::METHOD_NOT_FOUND;
use mycelium::{CallError, JsonRpcPeer, PayloadForm};
use tokio::sync::watch;

use crate::delivery::call_error_text;
use crate::metrics::Metrics;
use crate::supervisor_api::GatewayState;

/// How long a supervisor may take to pass on what is bound to an earlier root; it goes on when that is over.
const SUCCEED_TIMEOUT: Duration = Duration::from_secs(5);

/// Paths of the signing files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningSource {
    /// Key and certificate.
    pub files: SigningFiles,
    /// The changes of root; absent: `coordinator.changes` beside the certificate, if it is there.
    pub root_change: Option<PathBuf>,
}

impl SigningSource {
    /// Reads the files.
    ///
    /// # Errors
    /// Any [`SigningFilesError`]; [`SigningFilesError::Changes`] when the changes have nothing to do with the root of the certificate.
    pub fn read(&self) -> Result<(Sealer, Vec<String>), SigningFilesError> {
        let sealer = self.files.sealer()?;
        let Some(path) = self.changes() else { return Ok((sealer, Vec::new())) };
        let (mut changes, succession) = read_changes(&path)?;
        let root = sealer.root();
        if succession.current_root() != root {
            // They are there before the certificate of the new root is.
            let Some(count) = succession.retired_roots().iter().position(|before| *before == root) else {
                let why = format!(
                    "the changes lead to {}, and the certificate is of {root}",
                    succession.current_root()
                );
                return Err(SigningFilesError::Changes { path, refusal: envelope::Refusal::Malformed(why) });
            };
            changes.truncate(count);
        }
        let text = |change: &envelope::Envelope| String::from_utf8_lossy(&change.to_json()).into_owned();
        Ok((sealer, changes.iter().map(text).collect()))
    }

    fn changes(&self) -> Option<PathBuf> {
        let beside =
            || Some(self.files.certificate.with_file_name(ROOT_CHANGE_FILE)).filter(|path| path.exists());
        self.root_change.clone().or_else(beside)
    }

    /// Computes a value that differs when a file does, or the error of reading it.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let paths = [Some(self.files.key.clone()), Some(self.files.certificate.clone()), self.changes()];
        for path in paths.into_iter().flatten() {
            path.hash(&mut hasher);
            std::fs::read(&path).map_err(|error| error.kind()).hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// Identity of the coordinator.
#[derive(Debug, Clone)]
pub struct CoordinatorIdentity {
    /// Root key of the coordinator.
    pub root: VerifyingKey,
    /// The changes that lead to it, oldest first: envelopes as JSON.
    pub changes: Arc<[String]>,
}

/// Current identity of the coordinator, for the tasks that speak for it. Clones are the same.
#[derive(Debug, Clone)]
pub struct CoordinatorIdentityWatch(watch::Sender<CoordinatorIdentity>);

impl CoordinatorIdentityWatch {
    /// Begins with this root, to which these changes have led.
    #[must_use]
    pub fn new(root: VerifyingKey, changes: Vec<String>) -> Self {
        Self(watch::Sender::new(CoordinatorIdentity { root, changes: changes.into() }))
    }

    /// Returns the current identity.
    #[must_use]
    pub fn now(&self) -> CoordinatorIdentity {
        self.0.borrow().clone()
    }

    /// Waits until the root is another one. Loses nothing when dropped.
    pub async fn other_than(&self, root: VerifyingKey) {
        // The sender is `self`: it cannot be gone.
        drop(self.0.subscribe().wait_for(|standing| standing.root != root).await);
    }
}

/// Follows the files, and renews the signers that use them.
pub struct SigningReloader {
    source: SigningSource,
    signers: [Arc<EnvelopeSigner>; 2],
    identity: CoordinatorIdentityWatch,
    metrics: Metrics,
    judged: Mutex<u64>,
}

impl SigningReloader {
    /// Follows files that were read just now.
    #[must_use]
    pub fn new(
        source: SigningSource,
        voices: [Arc<EnvelopeSigner>; 2],
        root: CoordinatorIdentityWatch,
        metrics: Metrics,
    ) -> Self {
        // Looked at once more: they may have changed since.
        Self { source, signers: voices, identity: root, metrics, judged: Mutex::new(0) }
    }

    /// Reads the files again if they are others than before; says whether there was something to judge.
    ///
    /// # Errors
    /// A [`SigningFilesError`], once for what cannot be used; what was read before still holds.
    pub fn look_again(&self) -> Result<bool, SigningFilesError> {
        let found = self.source.fingerprint();
        if std::mem::replace(&mut *self.judged.lock().unwrap_or_else(PoisonError::into_inner), found) == found
        {
            return Ok(false);
        }
        let (sealer, changes) = self.source.read()?;
        let (old, new) = (self.identity.now().root, sealer.root());
        // Before it is said who it is: whoever begins anew has to sign as who it is.
        for voice in &self.signers {
            voice.renew(sealer.clone());
        }
        self.identity.0.send_replace(CoordinatorIdentity { root: new, changes: changes.into() });
        if old != new {
            tracing::warn!(%old, %new, "the coordinator has another root: conversations begin anew");
        }
        Ok(true)
    }

    /// Follows the files for ever.
    pub async fn keep(self) {
        let look = |asked| match self.look_again() {
            Ok(true) => {
                self.metrics.signing_read("taken");
                tracing::info!("signing key and certificate were read; they hold from now on");
            }
            Ok(false) if asked => tracing::info!("signing key and certificate are as they were"),
            Ok(false) => {}
            Err(error) => {
                self.metrics.signing_read("refused");
                let error = service::error_chain(&error);
                tracing::error!("{error}; signing key and certificate from before still hold");
            }
        };
        service::poll_files("signing key and certificate", look).await;
    }
}

/// Tells a supervisor how the coordinator came to its root, so that what is bound to an earlier one is its own.
///
/// # Errors
/// Says why the supervisor does not follow; until it does, nothing can be asked of it.
pub(crate) async fn announce_root_changes(
    desk: &GatewayState,
    peer: &JsonRpcPeer,
    address: &str,
) -> Result<(), String> {
    let changes = desk.identity.now().changes;
    if changes.is_empty() || desk.peers.form(address) == PayloadForm::Plain {
        return Ok(());
    }
    let said = CoordinatorSucceed { changes: changes.to_vec() };
    match peer.call(method::COORDINATOR_SUCCEED, &said, SUCCEED_TIMEOUT).await {
        Ok(answer) => {
            let passed: CoordinatorSucceeded =
                serde_json::from_str(answer.get()).map_err(|error| error.to_string())?;
            if passed.contexts > 0 {
                tracing::info!(
                    address,
                    passed.contexts,
                    "a supervisor knows the coordinator by its new root"
                );
            }
            Ok(())
        }
        Err(CallError::Refused(refused)) if refused.code == METHOD_NOT_FOUND => {
            tracing::warn!(address, "a supervisor of an earlier version knows nothing of changes of root");
            Ok(())
        }
        Err(error) => {
            let error = call_error_text(&error);
            tracing::warn!(address, error, "a supervisor does not follow the change of root");
            Err(error)
        }
    }
}
