//! By which keys jobs are signed, and signatures that come later.

use std::collections::BTreeMap;

use keys::Layout;
use model::{ActorId, JobId};
use proto::internal::v1 as wire;
use tonic::Code;

use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage, failure, key_of};

#[tokio::test]
async fn an_actors_key_is_told_to_those_who_run_something_for_it() {
    let stage = Stage::new(Layout::Database).await;
    let key = key_of(EXECUTOR);
    let ask = async |caller_id, on_behalf_of| {
        let request = wire::ReadSignerRequest { context_id: CONTEXT, caller_id, on_behalf_of };
        stage.flows().read_signer(request).await.map(tonic::Response::into_inner)
    };
    for actor in [ADMIN, EXECUTOR] {
        let signer = ask(EXECUTOR, actor).await.unwrap();
        assert_eq!((&signer.key, &signer.context_uid), (&key, &stage.context_uid));
    }
    assert_eq!(failure(ask(ADMIN, EXECUTOR).await).0, Code::PermissionDenied);
    assert_eq!(failure(ask(READER, READER).await).0, Code::PermissionDenied);
    assert_eq!(failure(ask(STRANGER, STRANGER).await).0, Code::NotFound);
    assert_eq!(failure(ask(999, ADMIN).await).0, Code::InvalidArgument, "there is no such actor");
}

#[tokio::test]
async fn a_rerun_brings_new_signatures() {
    for (layout, request_id) in [(Layout::Database, "1"), (Layout::HashTag, "")] {
        let stage = Stage::new(layout).await;
        let mut flow = stage.started(3).await;
        let end = flow.end();
        stage.apply(&mut flow, end).await;
        let job = |place: u32| JobId(flow.first_job + place);
        let restart = wire::RestartFlowRequest {
            request_id: request_id.to_owned(),
            request_hash: "aa".to_owned(),
            context_id: CONTEXT,
            flow_id: flow.id,
            flow_uid: flow.uid.clone(),
            on_behalf_of: EXECUTOR,
            rerun_json: r#"{"scope":"all"}"#.to_owned(),
            env_vars: BTreeMap::new(),
            generation: 1,
            signatures: BTreeMap::from([(job(0).0, "first".to_owned()), (job(2).0, "third".to_owned())]),
        };
        assert!(stage.flows().restart_flow(restart.clone()).await.unwrap().into_inner().restarted);
        for (place, expected) in [(0, "first"), (1, ""), (2, "third")] {
            let record = stage.hash(&stage.keys().job(ActorId(EXECUTOR), job(place))).await;
            assert_eq!(record["signature"], expected, "{layout}");
        }
        let again = stage.flows().restart_flow(restart).await;
        if request_id.is_empty() {
            assert_eq!(failure(again).1, "FLOW_NOT_ENDED");
        } else {
            assert!(!again.unwrap().into_inner().restarted, "the same request");
        }
    }
}
