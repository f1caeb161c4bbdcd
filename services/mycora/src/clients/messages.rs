//! Calls about messages.

use proto::v1;
use proto::v1::message_service_client::MessageServiceClient;
use uuid::Uuid;

use super::{
    ApiResponseStream, AuthenticatedChannel, CALL_TIMEOUT, Clients, PAGE_SIZE, RETRY_WAITS, repeat, timed,
};
use crate::failure::{ApiCallError, CliError};

impl Clients {
    fn messages(&self) -> Result<&MessageServiceClient<AuthenticatedChannel>, CliError> {
        self.messages.as_ref().map_err(Clone::clone)
    }

    /// Sends chat or mail. Tried again when the answer was lost: the request has an id.
    pub async fn send_message(
        &self,
        request: &v1::SendMessageRequest,
    ) -> Result<v1::SendMessageResponse, CliError> {
        debug_assert!(!request.request_id.is_empty());
        let client = self.messages()?;
        Ok(call!(client, send_message, request).await?)
    }

    /// Reads a message.
    pub async fn get_message(&self, context_id: u32, key: &str) -> Result<v1::GetMessageResponse, CliError> {
        let request = v1::GetMessageRequest { context_id, key: key.to_owned() };
        let client = self.messages()?;
        Ok(call!(client, get_message, request).await?)
    }

    /// Reads the newest messages that the request describes, at most `limit`.
    pub async fn list_messages(
        &self,
        request: v1::ListMessagesRequest,
        limit: u32,
    ) -> Result<v1::ListMessagesResponse, CliError> {
        let client = self.messages()?;
        let (messages, next_page_token) = pages!(client, list_messages, request, messages, limit);
        Ok(v1::ListMessagesResponse { messages, next_page_token })
    }

    /// Reads the newest messages that will not arrive, at most `limit`.
    pub async fn list_dead_letters(
        &self,
        context_id: u32,
        limit: u32,
    ) -> Result<v1::ListDeadLettersResponse, CliError> {
        let client = self.messages()?;
        let request = v1::ListDeadLettersRequest { context_id, ..Default::default() };
        let (messages, next_page_token) = pages!(client, list_dead_letters, request, messages, limit);
        Ok(v1::ListDeadLettersResponse { messages, next_page_token })
    }

    /// Sends a dead letter again. Tried again when the answer was lost: the request has an id.
    pub async fn resend_message(
        &self,
        request: &v1::ResendMessageRequest,
    ) -> Result<v1::ResendMessageResponse, CliError> {
        debug_assert!(!request.request_id.is_empty());
        let client = self.messages()?;
        Ok(call!(client, resend_message, request).await?)
    }

    /// Removes a message. Tried again when the answer was lost: the request has an id.
    pub async fn delete_message(
        &self,
        context_id: u32,
        key: &str,
    ) -> Result<v1::DeleteMessageResponse, CliError> {
        let request_id = Uuid::new_v4().to_string();
        let request = v1::DeleteMessageRequest { context_id, key: key.to_owned(), request_id };
        let client = self.messages()?;
        Ok(call!(client, delete_message, request).await?)
    }

    /// Hands out what an actor received.
    ///
    /// The outer failure is that there is no way to ask.
    pub async fn receive_messages(
        &self,
        request: v1::ReceiveMessagesRequest,
    ) -> Result<Result<ApiResponseStream<v1::ReceiveMessagesResponse>, ApiCallError>, CliError> {
        let mut client = self.messages()?.clone();
        let answer = client.receive_messages(request).await;
        Ok(answer.map(|answer| ApiResponseStream(answer.into_inner())).map_err(ApiCallError::from))
    }

    /// Says that messages were read. Tried again when the answer was lost: it may be repeated.
    pub async fn acknowledge_messages(
        &self,
        request: &v1::AcknowledgeMessageRequest,
    ) -> Result<Result<v1::AcknowledgeMessageResponse, ApiCallError>, CliError> {
        let client = self.messages()?;
        Ok(call!(client, acknowledge_message, request).await)
    }
}
