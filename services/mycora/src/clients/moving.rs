//! Streams of exports and imports of contexts. A stream that breaks is continued by its command, which knows how far it came.

use proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{ApiResponseStream, Clients};
use crate::failure::ApiCallError;

impl Clients {
    /// Begins or continues an export.
    pub async fn export_context(
        &self,
        request: v1::ExportContextRequest,
    ) -> Result<ApiResponseStream<v1::ExportContextResponse>, ApiCallError> {
        Ok(ApiResponseStream(self.contexts.clone().export_context(request).await?.into_inner()))
    }

    /// Begins or continues an import with these pieces.
    pub async fn import_context(
        &self,
        pieces: mpsc::Receiver<v1::ImportContextRequest>,
    ) -> Result<ApiResponseStream<v1::ImportContextResponse>, ApiCallError> {
        let pieces = ReceiverStream::new(pieces);
        Ok(ApiResponseStream(self.contexts.clone().import_context(pieces).await?.into_inner()))
    }
}
