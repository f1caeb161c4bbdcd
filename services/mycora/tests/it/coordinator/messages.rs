//! Messages: those to actor 9 do not arrive, the second look at any other finds it arrived. Three wait in the inbox of
//! context 1; a follower receives the third after the first stream broke.

use proto::v1;
use proto::v1::message_service_server::MessageService;
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status};

use super::{Answers, ScriptedServices, answers, refused};

/// The message that arrives, and the one that does not.
const ARRIVES: &str = "message:1:7";
const FAILS: &str = "message:1:8";

fn sent(key: &str, status: v1::MessageStatus) -> v1::Message {
    let to = if key == FAILS { "9" } else { "2" };
    let error = if status == v1::MessageStatus::Error { "the actor has no home context" } else { "" };
    v1::Message {
        key: key.into(),
        context_id: 1,
        caller_id: 1,
        to: to.into(),
        topic: "Report".into(),
        message_type: v1::MessageType::Chat.into(),
        status: status.into(),
        error: error.into(),
        create_time: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 }),
        ..Default::default()
    }
}

fn received(id: u32) -> v1::Message {
    v1::Message {
        key: format!("message:0:{id}"),
        context_id: 1,
        message_id: id,
        from_pubkey: "ab".repeat(32),
        to: "1".into(),
        message_type: v1::MessageType::Chat.into(),
        text: format!("text {id}"),
        status: v1::MessageStatus::Acknowledged.into(),
        origin: Some(v1::MessageOrigin::default()),
        verified: id == 1,
        ..Default::default()
    }
}

fn handed_out(ids: &[u32]) -> Result<v1::ReceiveMessagesResponse, Status> {
    Ok(v1::ReceiveMessagesResponse { messages: ids.iter().map(|id| received(*id)).collect() })
}

#[tonic::async_trait]
impl MessageService for ScriptedServices {
    /// The first answer is lost.
    async fn send_message(
        &self,
        request: Request<v1::SendMessageRequest>,
    ) -> Result<Response<v1::SendMessageResponse>, Status> {
        let request = request.into_inner();
        let key = if request.to == "9" { FAILS } else { ARRIVES };
        let times = self.note(|recorded| {
            recorded.sent.push(request.clone());
            recorded.sent.iter().filter(|sent| sent.request_id == request.request_id).count()
        });
        if times == 1 {
            return Err(Status::unavailable("going away"));
        }
        let message = Some(sent(key, v1::MessageStatus::Dispatched));
        Ok(Response::new(v1::SendMessageResponse { message }))
    }

    async fn get_message(
        &self,
        request: Request<v1::GetMessageRequest>,
    ) -> Result<Response<v1::GetMessageResponse>, Status> {
        let key = request.into_inner().key;
        let looks = self.call(&format!("get {key}"));
        let status = match (key.as_str(), looks) {
            (ARRIVES | FAILS, 1) => v1::MessageStatus::Dispatched,
            (ARRIVES, _) => v1::MessageStatus::Acknowledged,
            (FAILS, _) => v1::MessageStatus::Error,
            _ => return Err(Status::not_found(format!("{key} was not found"))),
        };
        let message = v1::Message { text: "one\ntwo".into(), ..sent(&key, status) };
        Ok(Response::new(v1::GetMessageResponse { message: Some(message) }))
    }

    async fn list_messages(
        &self,
        request: Request<v1::ListMessagesRequest>,
    ) -> Result<Response<v1::ListMessagesResponse>, Status> {
        let request = request.into_inner();
        let v1::ListMessagesRequest { flow_id, message_type, status, page_size, .. } = request;
        self.call(&format!("list {flow_id} {message_type} {status} {page_size}"));
        Ok(Response::new(v1::ListMessagesResponse {
            messages: vec![sent(ARRIVES, v1::MessageStatus::Acknowledged)],
            next_page_token: "more".into(),
        }))
    }

    async fn delete_message(
        &self,
        request: Request<v1::DeleteMessageRequest>,
    ) -> Result<Response<v1::DeleteMessageResponse>, Status> {
        let key = request.into_inner().key;
        self.call(&format!("delete {key}"));
        match key.as_str() {
            ARRIVES => Ok(Response::new(v1::DeleteMessageResponse {})),
            _ => Err(refused(rpc::RpcReason::MessageUnderWay, "it is on its way")),
        }
    }

    type ReceiveMessagesStream = Answers<v1::ReceiveMessagesResponse>;

    async fn receive_messages(
        &self,
        request: Request<v1::ReceiveMessagesRequest>,
    ) -> Result<Response<Self::ReceiveMessagesStream>, Status> {
        let v1::ReceiveMessagesRequest { context_id, only_present, .. } = request.into_inner();
        let times = self.call(&format!("receive {context_id} {only_present}"));
        Ok(Response::new(match (context_id, only_present, times) {
            (1, true, _) => answers([handed_out(&[1, 2]), handed_out(&[3])]),
            (1, false, 1) => {
                answers([handed_out(&[1, 2]), handed_out(&[]), Err(Status::unavailable("going away"))])
            }
            (1, false, _) => {
                Box::pin(answers([handed_out(&[2]), handed_out(&[3])]).chain(tokio_stream::pending()))
            }
            _ => answers([]),
        }))
    }

    async fn acknowledge_message(
        &self,
        request: Request<v1::AcknowledgeMessageRequest>,
    ) -> Result<Response<v1::AcknowledgeMessageResponse>, Status> {
        let keys = request.into_inner().keys;
        self.call(&format!("acknowledge {}", keys.join(" ")));
        Ok(Response::new(v1::AcknowledgeMessageResponse { acknowledged_count: 1 }))
    }

    async fn list_dead_letters(
        &self,
        _: Request<v1::ListDeadLettersRequest>,
    ) -> Result<Response<v1::ListDeadLettersResponse>, Status> {
        let messages = vec![sent(FAILS, v1::MessageStatus::Error)];
        Ok(Response::new(v1::ListDeadLettersResponse { messages, next_page_token: String::new() }))
    }

    async fn resend_message(
        &self,
        request: Request<v1::ResendMessageRequest>,
    ) -> Result<Response<v1::ResendMessageResponse>, Status> {
        let v1::ResendMessageRequest { request_id, key, .. } = request.into_inner();
        self.call(&format!("resend {key}"));
        match (key.as_str(), request_id.is_empty()) {
            (FAILS, false) => {
                let message = Some(sent(FAILS, v1::MessageStatus::Dispatched));
                Ok(Response::new(v1::ResendMessageResponse { message }))
            }
            _ => Err(refused(rpc::RpcReason::NotADeadLetter, "it has arrived")),
        }
    }
}
