//! A connection to Redis that breaks with many changes under way: each change has one effect, which watchers receive once.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use keys::Layout;
use kv::Cmd;
use proto::internal::v1 as wire;
use storage::Config;
use testkit::{FaultProxy, PATIENCE, ProxyFault, ProxyTarget, RedisServer, wait_until};

use crate::places::Redis;
use crate::stage::Stage;
use crate::watches::{next, next_event, step_of, watch};

const FLOWS: u64 = 64;

/// A Redis behind a proxy.
struct Proxied {
    server: RedisServer,
    proxy: FaultProxy,
}

impl Proxied {
    async fn start() -> Self {
        let server = RedisServer::start();
        let proxy = FaultProxy::start(ProxyTarget::Unix(server.socket())).await;
        Self { server, proxy }
    }
}

impl Redis for Proxied {
    fn url(&self) -> String {
        format!("redis://{}", self.proxy.address())
    }

    fn clear(&self) {
        self.server.clear();
    }

    fn server_of(&self, _: &str) -> &RedisServer {
        &self.server
    }
}

/// Sends a step until it is known what became of it, as a scheduler does. Gives the revision.
async fn applied(stage: &Stage<Proxied>, step: wire::CommitRequest) -> u64 {
    let known = async || {
        let answer = stage.commit(step.clone()).await;
        match answer.refusal() {
            wire::CommitRefusal::Unspecified => Some(answer.revision),
            wire::CommitRefusal::UnknownOutcome => None,
            refusal => panic!("{refusal:?} {}", answer.detail),
        }
    };
    wait_until(known, PATIENCE, "a step is applied").await
}

/// Breaks the connection while 64 steps of as many flows are under way, which `fault` keeps so.
async fn break_under_steps(fault: ProxyFault, are_applied: bool) {
    let stage =
        Stage::with(Proxied::start().await, Config { layout: Layout::Database, ..Config::default() }).await;
    let mut flows = Vec::new();
    for _ in 0..FLOWS {
        let mut flow = stage.started(1).await;
        // Whose flow it is has been read by then: a step is one turn.
        let first = step_of(&flow, 0..1);
        stage.apply(&mut flow, first).await;
        flows.push(flow);
    }
    let mut events = watch(&stage, 0, "").await;
    next(&mut events).await;
    let before = stage.revision().await;
    let (held_before, proxy) = (stage.redis.proxy.held(), &stage.redis.proxy);
    proxy.set(fault);
    let steps = join_all(flows.iter().map(|flow| applied(&stage, step_of(flow, 0..1))));
    let breaking = async {
        let ids = stage.keys().ids();
        let under_way = || {
            let reply = stage.redis.server.raw(1, &["HGET", &ids, "revision"]);
            let revision: u64 = reply.split("\r\n").nth(1).expect("a bulk").parse().expect("a number");
            let applied = if are_applied { before + FLOWS } else { before };
            std::future::ready((revision == applied && proxy.held() > held_before).then_some(()))
        };
        wait_until(under_way, PATIENCE, "all steps are under way").await;
        proxy.cut_once();
    };
    let (revisions, ()) = tokio::join!(steps, breaking);

    let revisions: BTreeSet<u64> = revisions.into_iter().collect();
    assert_eq!(revisions, (before + 1..=before + FLOWS).collect(), "each has a change of its own");
    assert_eq!(stage.revision().await, before + FLOWS, "and there are no others");
    let ask = Cmd::new("XRANGE").arg(&stage.keys().events()).arg(&format!("({before}-{}", u32::MAX)).arg("+");
    let written = stage.command(ask).await.entries().unwrap();
    let written: Vec<_> = written.iter().map(|entry| entry.text("e").unwrap().to_owned()).collect();
    let of_flows: BTreeSet<_> = written.iter().collect();
    assert_eq!((written.len() as u64, of_flows.len() as u64), (FLOWS, FLOWS), "one event of each");
    for event in &written {
        assert_eq!(&next_event(&mut events).await.0, event, "in the order of the stream");
    }
}

#[tokio::test]
async fn steps_whose_answers_are_lost_have_one_effect_each() {
    break_under_steps(ProxyFault::HoldAnswers, true).await;
}

#[tokio::test]
async fn steps_that_are_lost_on_their_way_are_made() {
    break_under_steps(ProxyFault::Hold, false).await;
}
