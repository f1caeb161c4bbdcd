//! Scripts, files and outputs of jobs, by hash, on this machine:
//! `<work dir>/blobs/<context uid>/<sha256>`.
//!
//! A file is there whole or not at all. Instances link it into the directories
//! of their jobs, and put the outputs they collect beside it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::id::Uid;
use model::job::BlobRef;
use model::supervision::{BlobGet, BlobPiece, BlobPut, method};
use model::{BlobHash, ContextId, ContextUid, FileSource, JobKey, limits};
use mycelium::json_rpc::Peer;

use crate::error::BlobError;

/// How long a coordinator may take for one piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);

/// The blobs of this machine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Blobs {
    root: PathBuf,
}

/// For which attempt bytes travel.
#[derive(Debug, Clone, Copy)]
pub struct Purpose {
    /// The attempt.
    pub job_key: JobKey,
    /// Its context, as the coordinator numbered it.
    pub context_id: ContextId,
}

impl Blobs {
    /// Keeps them below a work directory.
    #[must_use]
    pub fn new(work_dir: &Path) -> Self {
        Self { root: work_dir.join("blobs") }
    }

    /// Makes sure that a file of a job is here, and takes its inline bytes out:
    /// from now on its hash is enough.
    ///
    /// # Errors
    /// Any [`BlobError`]; may be repeated.
    pub async fn settle(
        &self,
        file: &mut FileSource,
        purpose: Purpose,
        peer: &Peer,
    ) -> Result<(), BlobError> {
        let Some(inline) = file.inline.take() else { return self.fetch(file.blob, purpose, peer).await };
        let hash = file.blob.sha256;
        let bytes = STANDARD.decode(inline).map_err(|_| BlobError::Encoding(hash))?;
        self.keep(purpose.job_key.context, hash, bytes).await
    }

    /// Makes sure that a blob is here, by asking the coordinator when it is not.
    ///
    /// # Errors
    /// Any [`BlobError`]; may be repeated.
    pub async fn fetch(&self, blob: BlobRef, purpose: Purpose, peer: &Peer) -> Result<(), BlobError> {
        let path = self.path(purpose.job_key.context, blob.sha256);
        if tokio::fs::try_exists(&path).await.unwrap_or(false) {
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

    /// Gives an output to the coordinator, piece by piece. Repeating it changes nothing.
    ///
    /// # Errors
    /// Any [`BlobError`].
    pub async fn push(&self, blob: BlobRef, purpose: Purpose, peer: &Peer) -> Result<(), BlobError> {
        let path = self.path(purpose.job_key.context, blob.sha256);
        let bytes = tokio::fs::read(&path).await.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => BlobError::Missing(blob.sha256),
            _ => BlobError::Directory { path, source },
        })?;
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

    /// Forgets a context's blobs, and the directories of its jobs.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub async fn drop_context(&self, context: ContextUid) -> Result<(), BlobError> {
        let work = self.root.parent().unwrap_or(&self.root).join(context.to_string());
        for path in [self.root.join(context.to_string()), work] {
            match tokio::fs::remove_dir_all(&path).await {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(BlobError::Directory { path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn path(&self, context: ContextUid, hash: BlobHash) -> PathBuf {
        self.root.join(context.to_string()).join(hash.to_string())
    }

    async fn keep(&self, context: ContextUid, hash: BlobHash, bytes: Vec<u8>) -> Result<(), BlobError> {
        if BlobHash::of(&bytes) != hash {
            return Err(BlobError::Mismatch(hash));
        }
        let path = self.path(context, hash);
        let draft = path.with_extension(format!("{}.new", Uid::random()));
        let write = async {
            let dir = path.parent().unwrap_or(&self.root);
            tokio::fs::create_dir_all(dir).await?;
            tokio::fs::write(&draft, &bytes).await?;
            tokio::fs::rename(&draft, &path).await
        };
        write.await.map_err(|source| BlobError::Directory { path: path.clone(), source })
    }
}
