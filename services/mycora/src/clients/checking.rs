//! Checks of records. A check that breaks off is begun anew by whoever asked for it.

use proto::v1;

use super::{ApiResponseStream, Clients};
use crate::failure::ApiCallError;

impl Clients {
    /// Begins a check of the records of a context, or of those outside contexts.
    pub async fn check_context(
        &self,
        request: v1::CheckContextRequest,
    ) -> Result<ApiResponseStream<v1::CheckContextResponse>, ApiCallError> {
        Ok(ApiResponseStream(self.contexts.clone().check_context(request).await?.into_inner()))
    }
}
