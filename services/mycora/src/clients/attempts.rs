//! Calls about single attempts, straight to the machine that runs them.

use proto::v1;
use uuid::Uuid;

use super::{ApiResponseStream, CALL_TIMEOUT, Clients, PATIENT_WAITS, RETRY_WAITS, repeat, timed};
use crate::failure::{ApiCallError, CliError};

/// For how long one call waits for an end, in seconds: shorter than an answer may take.
const WAIT_SECS: u32 = 20;

impl Clients {
    /// Has a machine run an attempt. Tried again when the answer was lost: the request has an id.
    pub async fn run_attempt(
        &self,
        request: &v1::RunAttemptRequest,
    ) -> Result<v1::RunAttemptResponse, CliError> {
        debug_assert!(!request.request_id.is_empty());
        let client = self.supervisor.as_ref().map_err(Clone::clone)?;
        Ok(call!(client, run_attempt, request).await?)
    }

    /// Reads where an attempt stands.
    pub async fn get_attempt(&self, job_key: String) -> Result<v1::GetAttemptResponse, CliError> {
        let client = self.supervisor.as_ref().map_err(Clone::clone)?;
        Ok(call!(client, get_attempt, v1::GetAttemptRequest { job_key: job_key.clone() }).await?)
    }

    /// Waits until an attempt has ended. Tried again for as long as a supervisor may need to restart.
    pub async fn wait_attempt(&self, job_key: &str) -> Result<v1::WaitAttemptResponse, CliError> {
        let client = self.supervisor.as_ref().map_err(Clone::clone)?;
        let request = v1::WaitAttemptRequest { job_key: job_key.to_owned(), timeout_secs: WAIT_SECS };
        loop {
            let answer = call!(client, wait_attempt, request, &PATIENT_WAITS, CALL_TIMEOUT).await?;
            if answer.attempt.as_ref().is_some_and(|attempt| attempt.end_time.is_some()) {
                return Ok(answer);
            }
        }
    }

    /// Has an attempt stopped. Tried again when the answer was lost: the request has an id.
    pub async fn stop_attempt(
        &self,
        job_key: String,
        grace_secs: Option<u32>,
    ) -> Result<v1::StopAttemptResponse, CliError> {
        let client = self.supervisor.as_ref().map_err(Clone::clone)?;
        let request = v1::StopAttemptRequest { request_id: Uuid::new_v4().to_string(), job_key, grace_secs };
        Ok(call!(client, stop_attempt, request).await?)
    }

    /// Reads all that is kept of what an attempt printed.
    pub async fn stream_attempt_logs(
        &self,
        request: v1::StreamAttemptLogsRequest,
    ) -> Result<ApiResponseStream<v1::StreamAttemptLogsResponse>, CliError> {
        let mut client = self.supervisor.clone()?;
        Ok(ApiResponseStream(
            client.stream_attempt_logs(request).await.map_err(ApiCallError::from)?.into_inner(),
        ))
    }
}
