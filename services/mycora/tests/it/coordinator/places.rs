//! A gateway that reaches only `grpc://there:1`, and runners.

use proto::v1;
use proto::v1::gateway_service_server::GatewayService;
use proto::v1::runner_service_server::RunnerService;
use proto::v1::watch_runners_response::Event;
use tokio_stream::Iter;
use tonic::{Request, Response, Status};

use super::ScriptedServices;

#[tonic::async_trait]
impl GatewayService for ScriptedServices {
    async fn get_gateway(
        &self,
        _: Request<v1::GetGatewayRequest>,
    ) -> Result<Response<v1::GetGatewayResponse>, Status> {
        let peer = v1::Peer { address: "grpc://there:1".into(), connected: true, ..Default::default() };
        Ok(Response::new(v1::GetGatewayResponse {
            coordinator: "ef".repeat(32),
            bus: "mycelium".into(),
            bus_up: true,
            bus_version: "0.7.9".into(),
            peers: vec![peer],
            ..Default::default()
        }))
    }

    async fn ping_peer(
        &self,
        request: Request<v1::PingPeerRequest>,
    ) -> Result<Response<v1::PingPeerResponse>, Status> {
        let address = request.into_inner().address;
        self.call(&format!("ping {address}"));
        if address != "grpc://there:1" {
            let text = format!("{address} does not answer");
            return Err(rpc::Error::unavailable(rpc::RpcReason::PeerUnavailable, text).into());
        }
        let round_trip = Some(prost_types::Duration { seconds: 0, nanos: 7_000_000 });
        Ok(Response::new(v1::PingPeerResponse { round_trip, node: String::new() }))
    }

    async fn deliver(&self, _: Request<v1::DeliverRequest>) -> Result<Response<v1::DeliverResponse>, Status> {
        Err(Status::permission_denied("actor 1 may not"))
    }
}

#[tonic::async_trait]
impl RunnerService for ScriptedServices {
    async fn register_runner(
        &self,
        request: Request<v1::RegisterRunnerRequest>,
    ) -> Result<Response<v1::RegisterRunnerResponse>, Status> {
        let request = request.into_inner();
        self.call(&format!(
            "register {} {} {:?} {} {:?} {} {} {} {}",
            request.address,
            request.topic,
            request.script_types,
            request.group,
            request.labels,
            request.local,
            request.signing_key,
            request.envelope().as_str_name(),
            request.secret_ref,
        ));
        let runner = Some(v1::Runner { id: 4, ..Default::default() });
        Ok(Response::new(v1::RegisterRunnerResponse { runner }))
    }

    async fn update_runner(
        &self,
        request: Request<v1::UpdateRunnerRequest>,
    ) -> Result<Response<v1::UpdateRunnerResponse>, Status> {
        let request = request.into_inner();
        self.call(&format!(
            "update {} {} {} {:?} {} {}",
            request.runner_id,
            request.expected_revision,
            request.address,
            request.labels,
            request.envelope().as_str_name(),
            request.secret_ref,
        ));
        let v1::UpdateRunnerRequest { runner_id: id, address, .. } = request;
        let runner = Some(v1::Runner { id, address, ..Default::default() });
        Ok(Response::new(v1::UpdateRunnerResponse { runner }))
    }

    async fn drain_runner(
        &self,
        request: Request<v1::DrainRunnerRequest>,
    ) -> Result<Response<v1::DrainRunnerResponse>, Status> {
        let v1::DrainRunnerRequest { context_id, runner_id: id, resume, .. } = request.into_inner();
        self.call(&format!("drain {context_id} {id} {resume}"));
        let runner = Some(v1::Runner { id, ..Default::default() });
        Ok(Response::new(v1::DrainRunnerResponse { runner }))
    }

    async fn delete_runner(
        &self,
        request: Request<v1::DeleteRunnerRequest>,
    ) -> Result<Response<v1::DeleteRunnerResponse>, Status> {
        let v1::DeleteRunnerRequest { context_id, runner_id: id, .. } = request.into_inner();
        self.call(&format!("delete {context_id} {id}"));
        let runner = Some(v1::Runner { id, ..Default::default() });
        Ok(Response::new(v1::DeleteRunnerResponse { runner }))
    }

    type WatchRunnersStream = Iter<std::vec::IntoIter<Result<v1::WatchRunnersResponse, Status>>>;

    /// Breaks off once, behind the snapshot; goes on with a deletion and ends.
    async fn watch_runners(
        &self,
        request: Request<v1::WatchRunnersRequest>,
    ) -> Result<Response<Self::WatchRunnersStream>, Status> {
        let v1::WatchRunnersRequest { context_id, resume_position } = request.into_inner();
        self.call(&format!("watch {context_id} {resume_position}"));
        let say = |event, position: &str| {
            Ok(v1::WatchRunnersResponse { event: Some(event), resume_position: position.to_owned() })
        };
        let answers = if resume_position.is_empty() {
            let runner =
                v1::Runner { id: 4, address: "grpc://there:1".into(), live: true, ..Default::default() };
            let slow =
                rpc::Error::new(rpc::ErrorKind::ResourceExhausted, rpc::RpcReason::SlowConsumer, "slow");
            vec![
                say(Event::Runner(runner), ""),
                say(Event::SnapshotEnd(v1::SnapshotEnd {}), "7.1-00"),
                Err(slow.into()),
            ]
        } else {
            vec![say(Event::Removed(v1::RemovedRunner { runner_id: 4 }), "8.1-00")]
        };
        Ok(Response::new(tokio_stream::iter(answers)))
    }

    async fn get_runner(
        &self,
        request: Request<v1::GetRunnerRequest>,
    ) -> Result<Response<v1::GetRunnerResponse>, Status> {
        let v1::GetRunnerRequest { context_id, runner_id } = request.into_inner();
        match (context_id, runner_id) {
            (2, 4) => {
                let address = "grpc://there:1".to_owned();
                let labels = [("zone".to_owned(), "a".to_owned())].into();
                let runner =
                    v1::Runner { id: 4, address, labels, live: true, revision: 9, ..Default::default() };
                let runner = Some(runner);
                Ok(Response::new(v1::GetRunnerResponse { runner }))
            }
            _ => Err(Status::not_found(format!("runner {runner_id} was not found"))),
        }
    }

    async fn list_runners(
        &self,
        _: Request<v1::ListRunnersRequest>,
    ) -> Result<Response<v1::ListRunnersResponse>, Status> {
        Err(Status::permission_denied("actor 1 may not"))
    }
}
