//! JobService: blobs, for actors.

use ::rpc::{Caller, while_member};
use model::limits::{BLOB_CHUNK_BYTES, FILE_BYTES_MAX};
use model::{ActorId, BlobHash, ContextId, Role, Timestamp};
use proto::convert::node::blob_to_wire;
use proto::v1;
use proto::v1::job_service_server::JobService;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::status::field;
use super::{Answers, Rpc};
use crate::error::Error;
use crate::store::{Asker, Store};

/// Uploads that are held in memory at once.
const UPLOADS_MAX: usize = 16;
/// Pieces of a download that are read ahead.
const DOWNLOAD_AHEAD: usize = 2;

static UPLOADS: Semaphore = Semaphore::const_new(UPLOADS_MAX);

fn actor_of<T>(request: &Request<T>) -> Result<ActorId, Status> {
    let actor = Caller::of(request)?.actor();
    actor.ok_or_else(|| Error::NotAllowed("only actors may put and get blobs".to_owned()).into())
}

#[tonic::async_trait]
impl JobService for Rpc {
    async fn put_blob(
        &self,
        request: Request<Streaming<v1::PutBlobRequest>>,
    ) -> Result<Response<v1::PutBlobResponse>, Status> {
        let actor = actor_of(&request)?;
        let mut pieces = request.into_inner();
        let first = pieces.message().await?;
        let first = first.ok_or_else(|| Error::field("context_id", "the first piece names the context"))?;
        let context = ContextId(first.context_id);
        let expected = match first.sha256.as_str() {
            "" => None,
            text => Some(field("sha256", text.parse::<BlobHash>())?),
        };
        let store = self.hub.store();
        store.context(context).await?.1.require(actor, Role::Executor).map_err(Error::from)?;
        let _permit = UPLOADS.acquire().await.map_err(::rpc::Error::internal)?;
        let mut bytes = Vec::new();
        let mut next = Some(first);
        while let Some(piece) = next {
            let size = bytes.len() + piece.data.len();
            if piece.data.len() > BLOB_CHUNK_BYTES {
                let asked = piece.data.len() as u64;
                let max = BLOB_CHUNK_BYTES as u64;
                return Err(Error::Limit { limit: "bytes of a piece", max, asked }.into());
            }
            if size > FILE_BYTES_MAX {
                let max = FILE_BYTES_MAX as u64;
                return Err(Error::Limit { limit: "bytes of a blob", max, asked: size as u64 }.into());
            }
            bytes.extend_from_slice(&piece.data);
            next = pieces.message().await?;
        }
        if expected.is_some_and(|expected| expected != BlobHash::of(&bytes)) {
            return Err(Error::field("sha256", "the bytes have another hash").into());
        }
        let blob = store.put_blob(context, &bytes, Timestamp::now()).await?;
        Ok(Response::new(v1::PutBlobResponse { blob: Some(blob_to_wire(&blob)) }))
    }

    type GetBlobStream = Answers<v1::GetBlobResponse>;

    async fn get_blob(
        &self,
        request: Request<v1::GetBlobRequest>,
    ) -> Result<Response<Self::GetBlobStream>, Status> {
        let actor = actor_of(&request)?;
        let v1::GetBlobRequest { context_id, sha256 } = request.into_inner();
        let hash = field("sha256", sha256.parse::<BlobHash>())?;
        let context = ContextId(context_id);
        let store = self.hub.store().clone();
        let (size, uid) = store.blob_size(context, Asker::Actor(actor), hash).await?;
        let (sender, pieces) = mpsc::channel(DOWNLOAD_AHEAD);
        tokio::spawn(async move {
            let read =
                |store: Store, offset| async move { store.read_piece(context, uid, hash, offset).await };
            for offset in (0..size.max(1)).step_by(BLOB_CHUNK_BYTES) {
                let piece = read(store.clone(), offset).await.map_err(Status::from);
                let failed = piece.is_err();
                let answer = piece.map(|(data, _)| v1::GetBlobResponse { data: data.into() });
                if sender.send(answer).await.is_err() || failed {
                    return;
                }
            }
        });
        let pieces = ReceiverStream::new(pieces);
        let directory = self.identities.directory();
        Ok(Response::new(self.until_stop(while_member(pieces, directory, context, actor, Role::Reader))))
    }
}
