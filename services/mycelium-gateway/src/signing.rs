//! Signing files of the gateway: its key, the certificate of the coordinator's root for it, and the root rotations that led to
//! that root. The files are read again when they change.
//!
//! Unusable files never take effect: at the start they are an error, later the previous contents stay. A new key or
//! certificate of the same root is used from the next statement on, and nothing else changes. With another root the
//! coordinator has another identity for its peers, so conversations start over, with the changes that lead to that root.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use envelope::files::{ROOT_CHANGE_FILE, read_changes};
use envelope::{Envelope, EnvelopeSigner, GatewayCertificate, Sealer, SigningFiles, SigningFilesError};
use identity::VerifyingKey;
use model::Timestamp;
use model::supervision::{CoordinatorSucceed, CoordinatorSucceeded, method};
use mycelium::json_rpc::METHOD_NOT_FOUND;
use mycelium::{CallError, JsonRpcPeer, PayloadForm};
use tokio::sync::watch;

use crate::delivery::call_error_text;
use crate::metrics::Metrics;
use crate::supervisor_api::GatewayState;

/// How long a supervisor may take to transfer everything that is bound to an earlier root; it continues after the timeout.
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
            // The changes are written before the certificate of the new root.
            let Some(count) = succession.retired_roots().iter().position(|before| *before == root) else {
                let why = format!(
                    "the changes lead to {}, and the certificate is of {root}",
                    succession.current_root()
                );
                return Err(SigningFilesError::Changes { path, refusal: envelope::Refusal::Malformed(why) });
            };
            changes.truncate(count);
        }
        let text = |change: &Envelope| String::from_utf8_lossy(&change.to_json()).into_owned();
        Ok((sealer, changes.iter().map(text).collect()))
    }

    /// Reads when the certificate of the key ends.
    ///
    /// # Errors
    /// [`SigningFilesError::File`], [`SigningFilesError::Certificate`].
    pub fn certificate_end(&self) -> Result<Timestamp, SigningFilesError> {
        let path = || self.files.certificate.clone();
        let text =
            std::fs::read(path()).map_err(|source| SigningFilesError::File { path: path(), source })?;
        let read = Envelope::from_json(&text).and_then(|envelope| GatewayCertificate::read(&envelope));
        let certificate = read.map_err(|refusal| SigningFilesError::Certificate { path: path(), refusal })?;
        Ok(certificate.not_after)
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
        drop(self.0.subscribe().wait_for(|identity| identity.root != root).await);
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
        signers: [Arc<EnvelopeSigner>; 2],
        root: CoordinatorIdentityWatch,
        metrics: Metrics,
    ) -> Self {
        // The first check reads the files once more: they may have changed since.
        Self { source, signers, identity: root, metrics, judged: Mutex::new(0) }
    }

    /// Reads the files again if they have changed; returns true if they had.
    ///
    /// # Errors
    /// A [`SigningFilesError`], once for each unusable change; the previous contents stay in effect.
    pub fn look_again(&self) -> Result<bool, SigningFilesError> {
        let found = self.source.fingerprint();
        if std::mem::replace(&mut *self.judged.lock().unwrap_or_else(PoisonError::into_inner), found) == found
        {
            return Ok(false);
        }
        let (sealer, changes) = self.source.read()?;
        self.metrics.signing_certificate_ends(self.source.certificate_end()?);
        let (old, new) = (self.identity.now().root, sealer.root());
        // The signers come before the identity: a conversation that starts over must be signed with the new root's key.
        for signer in &self.signers {
            signer.renew(sealer.clone());
        }
        self.identity.0.send_replace(CoordinatorIdentity { root: new, changes: changes.into() });
        if old != new {
            tracing::warn!(%old, %new, "the coordinator has another root: conversations start over");
        }
        Ok(true)
    }

    /// Follows the files for ever.
    pub async fn keep(self) {
        let look = |on_demand| match self.look_again() {
            Ok(true) => {
                self.metrics.signing_read("taken");
                tracing::info!("signing key and certificate were read and are in effect");
            }
            Ok(false) if on_demand => tracing::info!("signing key and certificate have not changed"),
            Ok(false) => {}
            Err(error) => {
                self.metrics.signing_read("refused");
                let error = service::error_chain(&error);
                tracing::error!("{error}; the previous signing key and certificate stay in effect");
            }
        };
        service::poll_files("signing key and certificate", look).await;
    }
}

/// Sends a supervisor the changes of root, so that it transfers everything bound to an earlier root to the current one.
///
/// # Errors
/// Why the supervisor did not accept the changes; until it does, it accepts no other calls.
pub(crate) async fn announce_root_changes(
    state: &GatewayState,
    peer: &JsonRpcPeer,
    address: &str,
) -> Result<(), String> {
    let changes = state.identity.now().changes;
    if changes.is_empty() || state.peers.form(address) == PayloadForm::Plain {
        return Ok(());
    }
    let request = CoordinatorSucceed { changes: changes.to_vec() };
    match peer.call(method::COORDINATOR_SUCCEED, &request, SUCCEED_TIMEOUT).await {
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
            tracing::warn!(address, "a supervisor of an earlier version does not support changes of root");
            Ok(())
        }
        Err(error) => {
            let error = call_error_text(&error);
            tracing::warn!(address, error, "a supervisor does not accept the change of root");
            Err(error)
        }
    }
}
