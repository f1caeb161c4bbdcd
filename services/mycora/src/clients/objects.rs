//! Calls about what is kept: actors, contexts and jobs.
//!
//! Whatever changes something is tried again when the answer was lost: each of these requests has an id.

use proto::v1;

use super::{CALL_TIMEOUT, Clients, PAGE_SIZE, RETRY_WAITS, repeat, timed};
use crate::failure::ApiCallError;

impl Clients {
    /// Registers an actor.
    pub async fn register_actor(
        &self,
        request: &v1::RegisterActorRequest,
    ) -> Result<v1::RegisterActorResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.actors, register_actor, request).await
    }

    /// Reads all actors that we may: of a context, or without one (0) of the coordinator.
    pub async fn list_actors(&self, context_id: u32) -> Result<v1::ListActorsResponse, ApiCallError> {
        let request = v1::ListActorsRequest { context_id, ..Default::default() };
        let (actors, next_page_token) = pages!(self.actors, list_actors, request, actors, u32::MAX);
        Ok(v1::ListActorsResponse { actors, next_page_token })
    }

    /// Gives an actor another key.
    pub async fn rotate_actor_key(
        &self,
        request: &v1::RotateActorKeyRequest,
    ) -> Result<v1::RotateActorKeyResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.actors, rotate_actor_key, request).await
    }

    /// Removes an actor.
    pub async fn delete_actor(
        &self,
        request: &v1::DeleteActorRequest,
    ) -> Result<v1::DeleteActorResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.actors, delete_actor, request).await
    }

    /// Makes a context.
    pub async fn create_context(
        &self,
        request: &v1::CreateContextRequest,
    ) -> Result<v1::CreateContextResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.contexts, create_context, request).await
    }

    /// Reads all contexts in which we have a role.
    pub async fn list_contexts(&self) -> Result<v1::ListContextsResponse, ApiCallError> {
        let request = v1::ListContextsRequest::default();
        let (contexts, next_page_token) = pages!(self.contexts, list_contexts, request, contexts, u32::MAX);
        Ok(v1::ListContextsResponse { contexts, next_page_token })
    }

    /// Changes a context.
    pub async fn update_context(
        &self,
        request: &v1::UpdateContextRequest,
    ) -> Result<v1::UpdateContextResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.contexts, update_context, request).await
    }

    /// Reads who did what, the newest first, at most `limit`.
    pub async fn list_audit_entries(
        &self,
        request: v1::ListAuditEntriesRequest,
        limit: u32,
    ) -> Result<v1::ListAuditEntriesResponse, ApiCallError> {
        let (entries, next_page_token) = pages!(self.contexts, list_audit_entries, request, entries, limit);
        Ok(v1::ListAuditEntriesResponse { entries, next_page_token })
    }

    /// Has a job kept.
    pub async fn create_job(
        &self,
        request: &v1::CreateJobRequest,
    ) -> Result<v1::CreateJobResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.jobs, create_job, request).await
    }

    /// Reads a job.
    pub async fn get_job(&self, request: v1::GetJobRequest) -> Result<v1::GetJobResponse, ApiCallError> {
        call!(self.jobs, get_job, request).await
    }

    /// Reads the jobs that the request describes, at most `limit`.
    pub async fn list_jobs(
        &self,
        request: v1::ListJobsRequest,
        limit: u32,
    ) -> Result<v1::ListJobsResponse, ApiCallError> {
        let (jobs, next_page_token) = pages!(self.jobs, list_jobs, request, jobs, limit);
        Ok(v1::ListJobsResponse { jobs, next_page_token })
    }

    /// Removes a job that belongs to no flow.
    pub async fn delete_job(
        &self,
        request: &v1::DeleteJobRequest,
    ) -> Result<v1::DeleteJobResponse, ApiCallError> {
        debug_assert!(!request.request_id.is_empty());
        call!(self.jobs, delete_job, request).await
    }
}
