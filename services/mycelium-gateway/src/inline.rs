//! Sends small files with their jobs, so that they need not be asked for.

use std::collections::HashMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use model::limits::{BLOB_CHUNK_BYTES, INLINE_BYTES_MAX};
use model::{BlobHash, ContextId, Execution};
use proto::internal::v1::ReadBlobRequest;

use crate::clients::BlobStoreClient;

/// Reads the small blobs of one delivery, each once.
#[derive(Debug)]
pub struct Inliner {
    store: BlobStoreClient,
    context_id: ContextId,
    context_uid: String,
    read: HashMap<BlobHash, Option<String>>,
}

impl Inliner {
    /// Creates an inliner for jobs of one context.
    #[must_use]
    pub fn new(store: BlobStoreClient, context_id: ContextId, context_uid: String) -> Self {
        Self { store, context_id, context_uid, read: HashMap::new() }
    }

    /// Adds the bytes of files to an execution while it stays below the limit. An execution without files is
    /// passed on unread; so is an unreadable one, which its supervisor will reject.
    pub async fn fill(&mut self, json: Bytes) -> Bytes {
        if !names_files(&json) {
            return json;
        }
        let Ok(mut execution) = serde_json::from_slice::<Execution>(&json) else { return json };
        let mut size = json.len();
        for file in execution.files.values_mut() {
            let encoded = base64_len(file.blob.size);
            let fits = encoded.is_some_and(|encoded| size + encoded <= INLINE_BYTES_MAX);
            if file.inline.is_none() && fits {
                file.inline = self.read(file.blob.sha256).await;
                size += file.inline.as_ref().map_or(0, String::len);
            }
        }
        serde_json::to_vec(&execution).map_or(json, Bytes::from)
    }

    /// Reads a blob as base64; nothing when it is unavailable now: the supervisor will ask for it.
    async fn read(&mut self, hash: BlobHash) -> Option<String> {
        if let Some(known) = self.read.get(&hash) {
            return known.clone();
        }
        let request = ReadBlobRequest {
            context_uid: self.context_uid.clone(),
            context_id: self.context_id.0,
            sha256: hash.to_string(),
            offset: 0,
        };
        let text = match self.store.read_blob(request).await {
            Ok(answer) => Some(BASE64_STANDARD.encode(answer.into_inner().data)),
            Err(status) => {
                tracing::debug!(%status, %hash, "a file is not sent along");
                None
            }
        };
        self.read.insert(hash, text.clone());
        text
    }
}

/// Returns true when an execution may name files. Within a JSON text every quote is escaped, so these bytes
/// can only be a key.
fn names_files(json: &[u8]) -> bool {
    const KEY: &[u8] = br#""files":"#;
    json.windows(KEY.len()).any(|window| window == KEY)
}

/// Returns the base64 length of so many bytes; nothing when that is more than one piece anyway.
fn base64_len(bytes: u64) -> Option<usize> {
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= BLOB_CHUNK_BYTES)?;
    Some(bytes.div_ceil(3) * 4 + 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_key_counts_as_files() {
        assert!(names_files(br#"{"files":{}}"#));
        let script = serde_json::json!({ "script": r#"x = {"files": 1}; y = "\"files\":""# }).to_string();
        assert!(!names_files(script.as_bytes()), "{script}");
    }
}
