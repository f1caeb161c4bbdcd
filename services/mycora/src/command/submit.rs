//! `mycora flow submit`: uploads what the flow carries along, then submits it.

use bytes::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use model::limits::BLOB_CHUNK_BYTES;
use proto::v1;
use uuid::Uuid;

use super::{Session, flow, watch};
use crate::failure::{CallError, Failure};
use crate::flow_file::FlowFile;
use crate::output::{self, Format, json};

/// Uploads smaller than this together show no bar.
const BAR_FROM_BYTES: u64 = 1024 * 1024;

/// What `flow submit` takes.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// The flow file, YAML or JSON; `-` for standard input
    pub file: String,
    /// Set a variable of the flow. Wins over the file's `env`; a job's own `env` still wins over both
    #[arg(long, value_name = "NAME=VALUE", value_parser = flow::env_entry)]
    pub env: Vec<(String, String)>,
    /// Watch the flow until it has ended; Ctrl-C leaves it running
    #[arg(long, short)]
    pub watch: bool,
    /// The number that the flow shall have. Refused when it is taken
    #[arg(long, value_name = "ID", default_value_t = 0, hide_default_value = true)]
    pub flow_id: u32,
    /// Makes the submission repeatable: the same id with the same file starts one flow only
    #[arg(long, value_name = "UUID")]
    pub request_id: Option<Uuid>,
}

pub(super) async fn run(session: &Session, args: &SubmitArgs) -> Result<u8, Failure> {
    let file = flow::read(&args.file, &args.env)?;
    let context = session.context_or(file.context)?;
    let request_id = args.request_id.unwrap_or_else(Uuid::new_v4);
    let answer = submit(session, context, &file, args.flow_id, request_id).await?;
    let flow = answer.flow.clone().unwrap_or_default();
    if args.watch {
        return watch::run(session, context, flow.id).await;
    }
    match session.global.output {
        Format::Json => output::print_json(&json::of(&answer))?,
        Format::Table => output::print(&format!(
            "flow {} `{}` is started; watch it with `mycora flow watch {} --context {context}`\n",
            flow.id, flow.name, flow.id
        ))?,
    }
    Ok(0)
}

/// Uploads and submits. With the same `request_id` this has one effect, however often it is called.
///
/// # Errors
/// When something cannot be uploaded, or the flow is refused: then with the places in its file.
pub async fn submit(
    session: &Session,
    context: u32,
    file: &FlowFile,
    flow_id: u32,
    request_id: Uuid,
) -> Result<v1::SubmitFlowResponse, Failure> {
    upload(session, context, file).await?;
    let request = v1::SubmitFlowRequest {
        request_id: request_id.to_string(),
        context_id: context,
        flow_id,
        caller_id: session.actor(),
        flow: Some(file.spec.clone()),
    };
    session.clients.submit_flow(request).await.map_err(|error| located(file, error))
}

fn located(file: &FlowFile, error: CallError) -> Failure {
    if error.view.violations.is_empty() {
        return error.into();
    }
    Failure::Invalid(file.locate(&error.view.violations).to_string())
}

async fn upload(session: &Session, context: u32, file: &FlowFile) -> Result<(), Failure> {
    let total: u64 = file.uploads.iter().map(|upload| upload.blob.size).sum();
    let bar = if session.global.quiet || total < BAR_FROM_BYTES {
        ProgressBar::hidden()
    } else {
        ProgressBar::new(total)
    };
    let style = ProgressStyle::with_template("uploading {bar:30} {bytes}/{total_bytes} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    for upload in &file.uploads {
        bar.set_message(upload.label.clone());
        let bytes = upload.bytes(&file.files).map_err(|error| Failure::Invalid(error.to_string()))?;
        session.clients.put_blob(&pieces(context, upload.blob.sha256.to_string(), bytes.into())).await?;
        bar.inc(upload.blob.size);
    }
    bar.finish_and_clear();
    Ok(())
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
