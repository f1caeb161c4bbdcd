//! Blobs, which must be at the coordinator before anything refers to them.

use bytes::Bytes;
use flow_file::FlowFile;
use indicatif::{ProgressBar, ProgressStyle};
use model::limits::BLOB_CHUNK_BYTES;
use proto::v1;
use rpc::RpcReason;

use crate::command::CliSession;
use crate::failure::{ApiCallError, CliError};
use crate::output::terminal::drawable;

/// How often what has gone is uploaded again for one call.
const UPLOADS_AGAIN: u32 = 2;
/// Uploads smaller than this together show no bar.
const BAR_FROM_BYTES: u64 = 1024 * 1024;

/// Uploads everything that a flow carries along.
pub(in crate::command) async fn upload(
    session: &CliSession,
    context: u32,
    file: &FlowFile,
) -> Result<(), CliError> {
    let total: u64 = file.uploads.iter().map(|upload| upload.blob.size).sum();
    let bar = if session.global.quiet || total < BAR_FROM_BYTES {
        ProgressBar::hidden()
    } else {
        ProgressBar::new(total)
    };
    let style = ProgressStyle::with_template("uploading {bar:30} {bytes}/{total_bytes} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    for upload in &file.uploads {
        bar.set_message(drawable(&upload.label));
        let bytes = upload.bytes(&file.files).map_err(|error| CliError::Invalid(error.to_string()))?;
        session.clients.put_blob(&pieces(context, upload.blob.sha256.to_string(), bytes.into())).await?;
        bar.inc(upload.blob.size);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Makes a call that refers to the blobs of a flow. If a blob was removed meanwhile, since nothing had referred to it for too
/// long, uploads all of them again and makes the call once more.
pub(in crate::command) async fn with_uploads<T>(
    session: &CliSession,
    context: u32,
    file: &FlowFile,
    mut call: impl AsyncFnMut() -> Result<T, ApiCallError>,
) -> Result<Result<T, ApiCallError>, CliError> {
    for _ in 0..UPLOADS_AGAIN {
        match call().await {
            Err(error)
                if error.view.reason == RpcReason::BlobMissing.as_str() && !file.uploads.is_empty() =>
            {
                upload(session, context, file).await?;
            }
            answer => return Ok(answer),
        }
    }
    Ok(call().await)
}

/// The first piece names context and hash; an empty blob is one piece as well.
fn pieces(context_id: u32, sha256: String, mut bytes: Bytes) -> Vec<v1::PutBlobRequest> {
    let data = bytes.split_to(bytes.len().min(BLOB_CHUNK_BYTES));
    let mut pieces = vec![v1::PutBlobRequest { context_id, sha256, data }];
    while !bytes.is_empty() {
        let data = bytes.split_to(bytes.len().min(BLOB_CHUNK_BYTES));
        pieces.push(v1::PutBlobRequest { data, ..Default::default() });
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_travel_in_pieces() {
        for (size, lengths) in [
            (0, vec![0]),
            (5, vec![5]),
            (BLOB_CHUNK_BYTES, vec![BLOB_CHUNK_BYTES]),
            (2 * BLOB_CHUNK_BYTES + 1, vec![BLOB_CHUNK_BYTES, BLOB_CHUNK_BYTES, 1]),
        ] {
            let pieces = pieces(7, "hash".into(), vec![1; size].into());
            assert_eq!(pieces.iter().map(|piece| piece.data.len()).collect::<Vec<_>>(), lengths);
            assert_eq!((pieces[0].context_id, pieces[0].sha256.as_str()), (7, "hash"));
            assert!(pieces[1..].iter().all(|piece| piece.sha256.is_empty()));
        }
    }
}
