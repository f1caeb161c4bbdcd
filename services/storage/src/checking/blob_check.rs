//! Blobs: chunks, content and references.

use std::sync::Arc;

use kv::{Cmd, Value};
use model::BlobHash;
use sha2::{Digest as _, Sha256};

use super::context_check::ContextCheck;
use super::list_check::{members_of, which_exist};
use super::{CHECKED_AT_ONCE, FindingCode, READ_AT_ONCE};
use crate::error::Result;
use crate::scripts;

/// Fields of a blob that tell whether it is still the same one.
const BLOB_FIELDS: [&str; 3] = ["size", "chunks", "created_at"];
/// Chunks of a blob: none has more, whatever its record says.
const CHUNKS_MAX: u32 = 32;

impl ContextCheck {
    /// Checks the blobs that exist, or to which jobs refer. All jobs were read before.
    pub(super) async fn check_blobs(&mut self) -> Result<()> {
        for hash in std::mem::take(&mut self.blobs) {
            if self.found.is_abandoned() {
                return Ok(());
            }
            let suspects = self.stale_references(hash).await?;
            self.confirm_blob(hash, &suspects).await?;
            self.check_content(hash).await?;
            self.found.send().await;
        }
        Ok(())
    }

    /// Finds references of jobs that do not exist.
    async fn stale_references(&self, hash: BlobHash) -> Result<Vec<Vec<u8>>> {
        let (tenant, mut cursor, mut suspects) = (Arc::clone(&self.tenant), "0".to_owned(), Vec::new());
        let refs = tenant.keys.blob_refs(hash);
        loop {
            let query = Cmd::new("SSCAN").arg(&refs).arg(&cursor).arg("COUNT").arg(READ_AT_ONCE);
            let [next, entries] = match tenant.connection.cmd(query).await {
                // The key is a finding of its own.
                Err(error) if error.code() == Some("WRONGTYPE") => return Ok(suspects),
                page => page?.tuple()?,
            };
            let (mut named, mut keys) = (Vec::new(), Vec::new());
            for entry in members_of("SSCAN", entries)? {
                match String::from_utf8(entry) {
                    Ok(key) if tenant.keys.parse(&key).is_some() => {
                        named.push(key.clone().into_bytes());
                        keys.push(key);
                    }
                    Ok(other) => suspects.push(other.into_bytes()),
                    Err(other) => suspects.push(other.into_bytes()),
                }
            }
            let exist = which_exist(&tenant, &keys).await?;
            suspects
                .extend(named.into_iter().zip(exist).filter(|(_, exists)| !exists).map(|(entry, _)| entry));
            cursor = next.text()?;
            if cursor == "0" {
                return Ok(suspects);
            }
        }
    }

    async fn confirm_blob(&mut self, hash: BlobHash, suspects: &[Vec<u8>]) -> Result<()> {
        let tenant = Arc::clone(&self.tenant);
        let (blob, refs) = (tenant.keys.blob(hash), tenant.keys.blob_refs(hash));
        let touched = scripts::CHECK_BLOB.keys([
            ("blob", &blob),
            ("blob_refs", &refs),
            ("blob_idle", &tenant.blob_idle),
        ]);
        // References are checked a part at a time, the blob itself with the last part.
        let first = suspects.len().min(CHECKED_AT_ONCE);
        let rest = suspects[first..].chunks(CHECKED_AT_ONCE);
        for some in std::iter::once(&suspects[..first]).chain(rest) {
            let change = self
                .begin(&scripts::CHECK_BLOB, &touched)
                .named(kv::named![hash: &hash.to_string()])
                .args(some);
            self.check(change).await?;
        }
        Ok(())
    }

    /// Compares the content of a blob with its name, a chunk at a time.
    async fn check_content(&mut self, hash: BlobHash) -> Result<()> {
        let tenant = Arc::clone(&self.tenant);
        let query = || Cmd::new("HMGET").arg(&tenant.keys.blob(hash)).args(BLOB_FIELDS);
        let Ok(record) = tenant.connection.cmd(query()).await?.tuple::<3>() else { return Ok(()) };
        if record[0].is_nil() {
            return Ok(());
        }
        let numbers = record.clone().map(|value| value.text().ok().and_then(|text| text.parse::<u32>().ok()));
        let [Some(size), Some(chunks), _] = numbers else {
            self.note(
                FindingCode::RecordUnreadable,
                format!("blob:{hash}"),
                "`size` and `chunks` are no numbers",
            );
            return Ok(());
        };
        let (mut content, mut bytes) = (Sha256::new(), 0);
        for n in 0..chunks.min(CHUNKS_MAX) {
            let chunk = tenant.connection.cmd(Cmd::new("GET").arg(&tenant.keys.blob_chunk(hash, n))).await;
            // A chunk that is missing or no text is a finding of its own.
            let Ok(chunk) = chunk.and_then(Value::bytes) else { return Ok(()) };
            bytes += chunk.len();
            content.update(&chunk);
        }
        let is_other = content.finalize().as_slice() != hash.as_bytes() || u32::try_from(bytes) != Ok(size);
        // The chunks of a blob never change: it is still the one that was read.
        if is_other && tenant.connection.cmd(query()).await?.tuple::<3>().is_ok_and(|after| after == record) {
            let problem =
                format!("the {bytes} bytes of the blob are not those that its name and size tell of");
            self.note(FindingCode::BlobContent, format!("blob:{hash}"), problem);
        }
        Ok(())
    }
}
