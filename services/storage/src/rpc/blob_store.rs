//! BlobStoreService: blobs, for the gateway.

use ::rpc::{ErrorKind, RpcReason};
use model::{BlobHash, ContextId, ContextUid, Timestamp};
use proto::internal::v1::blob_store_service_server::BlobStoreService;
use proto::internal::v1::{ReadBlobRequest, ReadBlobResponse, WriteBlobRequest, WriteBlobResponse};
use tonic::{Request, Response, Status};

use super::StorageRpc;
use super::status::field;
use crate::blobs::BlobUploadPart;
use crate::error::Error;

#[tonic::async_trait]
impl BlobStoreService for StorageRpc {
    async fn read_blob(
        &self,
        request: Request<ReadBlobRequest>,
    ) -> Result<Response<ReadBlobResponse>, Status> {
        let ReadBlobRequest { context_uid, context_id, sha256, offset } = request.into_inner();
        let uid = field("context_uid", context_uid.parse::<ContextUid>())?;
        let hash = field("sha256", sha256.parse::<BlobHash>())?;
        let read = self.hub.store().read_piece(ContextId(context_id), uid, hash, offset).await;
        let (data, size) = read.map_err(|error| match error {
            Error::NotFound(resource) => {
                let message = format!("{resource} was not found");
                ::rpc::Error::new(ErrorKind::NotFound { resource }, RpcReason::BlobMissing, message)
            }
            error => error.into(),
        })?;
        Ok(Response::new(ReadBlobResponse { data: data.into(), size }))
    }

    async fn write_blob(
        &self,
        request: Request<WriteBlobRequest>,
    ) -> Result<Response<WriteBlobResponse>, Status> {
        let WriteBlobRequest { context_uid, context_id, sha256, size, offset, data } = request.into_inner();
        let uid = field("context_uid", context_uid.parse::<ContextUid>())?;
        let hash = field("sha256", sha256.parse::<BlobHash>())?;
        let piece = BlobUploadPart { hash, size, offset, data };
        self.hub.store().write_piece(ContextId(context_id), uid, piece, Timestamp::now()).await?;
        Ok(Response::new(WriteBlobResponse {}))
    }
}
