//! Scripts, files and outputs of jobs, by hash, on this machine:
//! `<work dir>/blobs/<context uid>/<sha256>`.
//!
//! A file is there completely or not at all. Instances link it into the directories
//! of their jobs, and put the outputs they collect beside it. A file's modification time is the time of its
//! last use; together the files stay within a bound (see [`eviction`]).

pub mod eviction;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::id::Uid;
use model::job::BlobRef;
use model::supervision::{BlobGet, BlobPiece, BlobPut, method};
use model::{BlobHash, ContextId, ContextUid, Execution, FileSource, JobKey, ScriptSource, limits};
use mycelium::json_rpc::JsonRpcPeer;
use tokio::sync::Notify;

use self::eviction::{BlobUseCounts, ContextBlob};
use crate::error::BlobError;
use crate::work_dir::{WorkDir, blocking};

/// How long a coordinator may take for one piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);

/// Fraction of the bound (one over this number) that may be written until the next eviction is due.
const PART_WRITTEN: u64 = 16;

/// The blobs of this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BlobCache(Arc<BlobCacheInner>);

#[derive(Debug)]
struct BlobCacheInner {
    root: PathBuf,
    bytes_max: u64,
    uses: Mutex<BlobUseCounts>,
    /// Bytes written since the last eviction began.
    written: AtomicU64,
    /// Notified when enough was written for an eviction.
    grown: Notify,
}

/// Keeps blobs that a job names, from before they are looked for until the job is accepted.
#[derive(Debug)]
pub struct BlobUseGuard {
    blobs: BlobCache,
    places: Vec<ContextBlob>,
}

impl Drop for BlobUseGuard {
    fn drop(&mut self) {
        let mut uses = self.blobs.uses();
        for place in &self.places {
            uses.end(*place);
        }
    }
}

/// Attempt for which a blob is transferred.
#[derive(Debug, Clone, Copy)]
pub struct BlobPurpose {
    /// The attempt.
    pub job_key: JobKey,
    /// Context of the attempt, as the coordinator numbered it.
    pub context_id: ContextId,
}

impl BlobCache {
    /// Creates a cache in a work directory with this bound in bytes.
    #[must_use]
    pub fn new(work_dir: &WorkDir, bytes_max: u64) -> Self {
        Self(Arc::new(BlobCacheInner {
            root: work_dir.blobs(),
            bytes_max,
            uses: Mutex::default(),
            written: AtomicU64::new(0),
            grown: Notify::new(),
        }))
    }

    /// Protects the blobs that a job names from removal until the guard is dropped. By then the job must be
    /// accepted or refused.
    #[must_use]
    pub fn use_for(&self, job: &Execution) -> BlobUseGuard {
        let context = job.job_key.context;
        let mut places: Vec<_> = job.files.values().map(|file| (context, file.blob.sha256)).collect();
        if let ScriptSource::Blob(script) = &job.script {
            places.push((context, script.sha256));
        }
        let mut uses = self.uses();
        for place in &places {
            uses.begin(*place);
        }
        drop(uses);
        BlobUseGuard { blobs: self.clone(), places }
    }

    /// Waits until enough was written for an eviction to be due.
    pub async fn grown(&self) {
        self.0.grown.notified().await;
    }

    /// Makes sure that a file of a job is here, and removes its inline bytes from the job:
    /// from now on the hash suffices.
    ///
    /// # Errors
    /// Any [`BlobError`]; may be repeated.
    pub async fn settle(
        &self,
        file: &mut FileSource,
        purpose: BlobPurpose,
        peer: &JsonRpcPeer,
    ) -> Result<(), BlobError> {
        let Some(inline) = file.inline.take() else { return self.fetch(file.blob, purpose, peer).await };
        let hash = file.blob.sha256;
        let bytes = STANDARD.decode(inline).map_err(|_| BlobError::Encoding(hash))?;
        self.keep(purpose.job_key.context, hash, bytes).await
    }

    /// Makes sure that a blob is here; fetches it from the coordinator if necessary.
    ///
    /// # Errors
    /// Any [`BlobError`]; may be repeated.
    pub async fn fetch(
        &self,
        blob: BlobRef,
        purpose: BlobPurpose,
        peer: &JsonRpcPeer,
    ) -> Result<(), BlobError> {
        if self.touch(purpose.job_key.context, blob.sha256).await {
            return Ok(());
        }
        let mut bytes = Vec::new();
        loop {
            let ask = BlobGet {
                job_key: purpose.job_key,
                context_id: purpose.context_id,
                sha256: blob.sha256,
                offset: bytes.len() as u64,
            };
            let answer = peer.call(method::BLOB_GET, &ask, PIECE_TIMEOUT).await;
            let answer = answer.map_err(|source| BlobError::Refused { hash: blob.sha256, source })?;
            let piece: BlobPiece =
                serde_json::from_str(answer.get()).map_err(|_| BlobError::Malformed(blob.sha256))?;
            let data = STANDARD.decode(piece.data).map_err(|_| BlobError::Malformed(blob.sha256))?;
            let done = bytes.len() + data.len();
            let too_large = done > limits::FILE_BYTES_MAX || piece.size > limits::FILE_BYTES_MAX as u64;
            if too_large || (data.is_empty() && (done as u64) < piece.size) {
                return Err(BlobError::Malformed(blob.sha256));
            }
            bytes.extend(data);
            if bytes.len() as u64 >= piece.size {
                break;
            }
        }
        self.keep(purpose.job_key.context, blob.sha256, bytes).await
    }

    /// Uploads an output to the coordinator, piece by piece. May be repeated without effect.
    ///
    /// # Errors
    /// Any [`BlobError`].
    pub async fn push(
        &self,
        blob: BlobRef,
        purpose: BlobPurpose,
        peer: &JsonRpcPeer,
    ) -> Result<(), BlobError> {
        let bytes = self.read(purpose.job_key.context, blob.sha256).await?;
        let mut offset = 0;
        loop {
            let end = (offset + limits::BLOB_CHUNK_BYTES).min(bytes.len());
            let put = BlobPut {
                job_key: purpose.job_key,
                context_id: purpose.context_id,
                sha256: blob.sha256,
                size: blob.size,
                offset: offset as u64,
                data: STANDARD.encode(&bytes[offset..end]),
            };
            let answer = peer.call(method::BLOB_PUT, &put, PIECE_TIMEOUT).await;
            answer.map_err(|source| BlobError::Refused { hash: blob.sha256, source })?;
            offset = end;
            if offset == bytes.len() {
                return Ok(());
            }
        }
    }

    /// Returns true if a blob is here, and marks it as just used.
    async fn touch(&self, context: ContextUid, hash: BlobHash) -> bool {
        let path = self.path(context, hash);
        blocking(move || {
            let touched = std::fs::File::open(&path).map(|file| file.set_modified(SystemTime::now()));
            if let Ok(Err(error)) = &touched {
                tracing::debug!(path = %path.display(), %error, "the time of a blob's use cannot be set");
            }
            touched.is_ok()
        })
        .await
    }

    async fn read(&self, context: ContextUid, hash: BlobHash) -> Result<Vec<u8>, BlobError> {
        let (blobs, path) = (self.clone(), self.path(context, hash));
        let read = {
            let path = path.clone();
            blocking(move || {
                let opened = {
                    // An eviction renames the blob for a moment; the lock waits for that.
                    let _uses = blobs.uses();
                    std::fs::File::open(&path)
                };
                let mut bytes = Vec::new();
                io::Read::read_to_end(&mut opened?, &mut bytes)?;
                Ok(bytes)
            })
            .await
        };
        read.map_err(|source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => BlobError::Missing(hash),
            _ => BlobError::Directory { path, source },
        })
    }

    fn uses(&self) -> MutexGuard<'_, BlobUseCounts> {
        self.0.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, context: ContextUid, hash: BlobHash) -> PathBuf {
        self.0.root.join(context.to_string()).join(hash.to_string())
    }

    async fn keep(&self, context: ContextUid, hash: BlobHash, bytes: Vec<u8>) -> Result<(), BlobError> {
        if BlobHash::of(&bytes) != hash {
            return Err(BlobError::Mismatch(hash));
        }
        let path = self.path(context, hash);
        let draft = path.with_extension(format!("{}.new", Uid::random()));
        let write = async {
            let dir = path.parent().unwrap_or(&self.0.root);
            tokio::fs::create_dir_all(dir).await?;
            tokio::fs::write(&draft, &bytes).await?;
            tokio::fs::rename(&draft, &path).await
        };
        if let Err(source) = write.await {
            // A half-written draft would take up the scarce room.
            let _ = tokio::fs::remove_file(&draft).await;
            return Err(BlobError::Directory { path: path.clone(), source });
        }
        let written = self.0.written.fetch_add(bytes.len() as u64, Ordering::Relaxed) + bytes.len() as u64;
        if written > self.0.bytes_max / PART_WRITTEN {
            self.0.grown.notify_one();
        }
        Ok(())
    }
}
