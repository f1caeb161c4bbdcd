//! The gRPC side: what actors may call. Storage checks permissions and keeps everything; the router passes on which actor
//! calls.

mod inbox;

use std::sync::Arc;

use ::rpc::{
    Allow, Caller, Directory, Error, MountBuilder, PolicyTable, ResumingStream, RpcReason, forward_status,
    while_member,
};
use futures_util::{StreamExt as _, stream};
use model::limits::GRPC_MESSAGE_BYTES_MAX;
use model::{ActorId, ContextId, Role};
use proto::internal::v1 as wire;
use proto::internal::v1::message_box_service_client::MessageBoxServiceClient;
use proto::v1;
use proto::v1::message_service_server::{MessageService, MessageServiceServer};
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use self::inbox::ResumableInbox;

/// Access policy for calls by actors.
pub const PUBLIC_POLICY: PolicyTable<'static> = &[("/mycora.v1.MessageService/*", &[Allow::AnyActor])];

/// Answers actors.
#[derive(Clone)]
pub(crate) struct RouterRpc {
    store: MessageBoxServiceClient<::rpc::Channel>,
    directory: Arc<dyn Directory>,
    /// Ends what actors receive.
    stop: CancellationToken,
}

impl RouterRpc {
    pub(crate) fn new(
        storage: ::rpc::Channel,
        directory: Arc<dyn Directory>,
        stop: CancellationToken,
    ) -> Self {
        let store = MessageBoxServiceClient::new(storage)
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
        Self { store, directory, stop }
    }

    pub(crate) fn mount_public(&self, mount: MountBuilder) -> MountBuilder {
        let server = MessageServiceServer::new(self.clone())
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
        mount.service(server)
    }
}

/// Splits a request into its message and the calling actor's id.
fn request_and_actor<T>(request: Request<T>) -> Result<(T, u32), Status> {
    let ActorId(actor) = Caller::actor_of(&request)?;
    Ok((request.into_inner(), actor))
}

#[tonic::async_trait]
impl MessageService for RouterRpc {
    async fn send_message(
        &self,
        request: Request<v1::SendMessageRequest>,
    ) -> Result<Response<v1::SendMessageResponse>, Status> {
        let (message, on_behalf_of) = request_and_actor(request)?;
        let publish = wire::PublishRequest { message: Some(message), on_behalf_of };
        let answer = self.store.clone().publish(publish).await.map_err(forward_status)?.into_inner();
        Ok(Response::new(v1::SendMessageResponse { message: answer.message }))
    }

    async fn get_message(
        &self,
        request: Request<v1::GetMessageRequest>,
    ) -> Result<Response<v1::GetMessageResponse>, Status> {
        let (message, on_behalf_of) = request_and_actor(request)?;
        let find = wire::FindMessageRequest { message: Some(message), on_behalf_of };
        let answer = self.store.clone().find_message(find).await.map_err(forward_status)?.into_inner();
        Ok(Response::new(v1::GetMessageResponse { message: answer.message }))
    }

    async fn list_messages(
        &self,
        request: Request<v1::ListMessagesRequest>,
    ) -> Result<Response<v1::ListMessagesResponse>, Status> {
        let (list, on_behalf_of) = request_and_actor(request)?;
        let find = wire::FindMessagesRequest { list: Some(list), on_behalf_of };
        let answer = self.store.clone().find_messages(find).await.map_err(forward_status)?.into_inner();
        Ok(Response::new(answer.page.unwrap_or_default()))
    }

    async fn delete_message(
        &self,
        request: Request<v1::DeleteMessageRequest>,
    ) -> Result<Response<v1::DeleteMessageResponse>, Status> {
        let (message, on_behalf_of) = request_and_actor(request)?;
        let remove = wire::RemoveMessageRequest { message: Some(message), on_behalf_of };
        self.store.clone().remove_message(remove).await.map_err(forward_status)?;
        Ok(Response::new(v1::DeleteMessageResponse {}))
    }

    type ReceiveMessagesStream = BoxStream<v1::ReceiveMessagesResponse>;

    async fn receive_messages(
        &self,
        request: Request<v1::ReceiveMessagesRequest>,
    ) -> Result<Response<Self::ReceiveMessagesStream>, Status> {
        let (receive, on_behalf_of) = request_and_actor(request)?;
        let (context, owner) = (ContextId(receive.context_id), receive.actor_id);
        // Only admins may read the inboxes of other actors.
        let role = if [0, on_behalf_of].contains(&owner) { Role::Reader } else { Role::Admin };
        let only_present = receive.only_present;
        let watch = wire::WatchInboxRequest { receive: Some(receive), on_behalf_of };
        let answers: BoxStream<wire::WatchInboxResponse> = if only_present {
            Box::pin(self.store.clone().watch_inbox(watch).await.map_err(forward_status)?.into_inner())
        } else {
            let inbox = ResumableInbox::new(self.store.clone(), watch);
            ResumingStream::open(inbox).await.map_err(forward_status)?.into_stream()
        };
        let answers = answers
            .map(|answer| answer.map(|some| some.received.unwrap_or_default()).map_err(forward_status));
        let stop = self.stop.clone();
        let draining = stream::once(async move {
            let draining =
                || Error::unavailable(RpcReason::Draining, "the router is ending; resume elsewhere");
            stop.is_cancelled().then(|| Err(draining().into()))
        });
        let answers = answers.take_until(self.stop.clone().cancelled_owned());
        let answers = answers.chain(draining.filter_map(std::future::ready));
        let (directory, actor) = (Arc::clone(&self.directory), ActorId(on_behalf_of));
        Ok(Response::new(while_member(answers, directory, context, actor, role)))
    }

    async fn acknowledge_message(
        &self,
        request: Request<v1::AcknowledgeMessageRequest>,
    ) -> Result<Response<v1::AcknowledgeMessageResponse>, Status> {
        let (acknowledge, on_behalf_of) = request_and_actor(request)?;
        let acknowledge = wire::AcknowledgeRequest { acknowledge: Some(acknowledge), on_behalf_of };
        let answer = self.store.clone().acknowledge(acknowledge).await.map_err(forward_status)?.into_inner();
        let acknowledged_count = answer.acknowledged_count;
        Ok(Response::new(v1::AcknowledgeMessageResponse { acknowledged_count }))
    }

    async fn list_dead_letters(
        &self,
        request: Request<v1::ListDeadLettersRequest>,
    ) -> Result<Response<v1::ListDeadLettersResponse>, Status> {
        let (list, on_behalf_of) = request_and_actor(request)?;
        let find = wire::FindDeadLettersRequest { list: Some(list), on_behalf_of };
        let answer = self.store.clone().find_dead_letters(find).await.map_err(forward_status)?.into_inner();
        Ok(Response::new(answer.page.unwrap_or_default()))
    }

    async fn resend_message(
        &self,
        request: Request<v1::ResendMessageRequest>,
    ) -> Result<Response<v1::ResendMessageResponse>, Status> {
        let (resend, on_behalf_of) = request_and_actor(request)?;
        let resend = wire::ResendRequest { resend: Some(resend), on_behalf_of };
        let answer = self.store.clone().resend(resend).await.map_err(forward_status)?.into_inner();
        Ok(Response::new(v1::ResendMessageResponse { message: answer.message }))
    }
}
