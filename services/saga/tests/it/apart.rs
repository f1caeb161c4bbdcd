//! Tenants apart in all that a process says of them: its log, and the pages of its ops port.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use broker::{Headers, MessageBroker, Publication};
use identity::Identity;
use model::{ActorId, CommandId};
use proto::v1;
use proto::v1::saga_service_client::SagaServiceClient;
use rpc::Channel;
use serde_json::{Value, json};
use testkit::{PATIENCE, wait_until};

use crate::crashes::Kept;
use crate::leaks::{BOTH, TENANTS, data_of, hostile, manifest, other_than};
use crate::process::{ReplicaProcess, SECRET, Upstream};
use crate::served::{Rows, Suite};
use crate::streams::{aggregates, connect, publish};

/// Inputs that are kept behind a letter, and one more that is not.
const BEHIND: usize = 1001;
/// Begins a line of its own, where a text of a tenant can make one.
const INJECTED: &str = "\r\nINJECTED\0\u{1b}[31m\u{202e}";

/// A process of two tenants.
struct Apart {
    suite: Suite,
    address: SocketAddr,
    broker: Arc<dyn MessageBroker>,
    saga: ReplicaProcess,
}

/// Returns the mark that correlations of a tenant contain.
fn mark_of(tenant: &str) -> String {
    format!("mark-of-tenant-{tenant}.")
}

/// A saga that a tenant applies by itself.
fn own(tenant: &str) -> String {
    format!("own-of-tenant-{tenant}-itself")
}

impl Apart {
    async fn start(upstream: &Upstream) -> Self {
        let suite = Suite::start().await;
        let broker = connect(&suite.nats).await;
        broker.ensure_stream(&aggregates()).await.expect("a stream");
        let secret = suite.dir().join("admin.secret");
        std::fs::write(&secret, SECRET).expect("written");
        std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("closed");
        let kept = Kept::new(suite.dir(), Rows::Directory);
        let (mut command, address) = suite.command(&kept, &manifest(&upstream.address), TENANTS, "combined");
        command.args(["--log-level", "trace", "--admin-secret-file"]).arg(secret);
        let saga = ReplicaProcess::spawn(suite.dir(), &mut command, "apart");
        Self { suite, address, broker, saga }
    }

    fn client(&self, actor: u32) -> SagaServiceClient<Channel> {
        SagaServiceClient::new(self.suite.channel(self.address, Identity::Actor(ActorId(actor))))
    }

    async fn raw(&self, subject: String, id: &str, payload: Vec<u8>) {
        let (message_id, payload) = (format!("{subject}-{id}"), payload.into());
        publish(&*self.broker, Publication { subject, message_id, headers: Headers::new(), payload }).await;
    }

    async fn event(&self, tenant: &str, kind: &str, id: &str, correlation: &str) {
        let body = json!({
            "event_id": id, "type": kind, "data": { "id": data_of(tenant) },
            "metadata": { "correlation_id": correlation },
        });
        self.raw(format!("tenant.{tenant}.aggregate.Order.x"), id, body.to_string().into()).await;
    }

    /// Has a tenant bring a saga of its own, and start it.
    async fn apply_own(&self, tenant: &str, admin: u32) {
        let (name, tenant_id) = (own(tenant), tenant.to_owned());
        let text = format!(
            "kind: Saga\nname: {name}\nversion: 1\nstate: {{ id: text }}\nsources: [{{ aggregate: Order }}]\n\
             start: {{ on: Begun, set: {{ id: \"${{{{ event.data.id }}}}\" }}, goto: wait }}\n\
             steps: {{ wait: {{ on: {{ Done: {{ end: completed }} }} }} }}\n"
        );
        let file = Some(v1::ManifestFile { name: "own.yaml".to_owned(), text });
        let apply = v1::ApplySagaRequest { tenant_id: tenant_id.clone(), file, ..Default::default() };
        self.client(admin).apply_saga(apply).await.expect("applied");
        let start = v1::StartSagaRequest {
            tenant_id,
            saga: name,
            correlation_id: mark_of(tenant),
            data_json: json!({ "id": data_of(tenant) }).to_string(),
            ..Default::default()
        };
        let started = async || self.client(admin).start_saga(start.clone()).await.ok().map(drop);
        wait_until(started, PATIENCE, "its lane is owned").await;
    }

    /// Messages that are no messages, with texts of the tenant in them.
    async fn break_in(&self, tenant: &str) {
        let (mark, command) = (mark_of(tenant), CommandId::from_bits(7));
        let key = format!("{INJECTED}{mark}");
        let ordered = |field: &str| {
            let mut ordered = json!({
                "tenant_id": tenant, "command_id": command.to_string(), "effect_name": "pay", "payload": {}, "cancel": false,
                "reply_to": { "saga": "order", "correlation": "x", "run": 0, "step": "work" },
                "result_type": "Succeeded", "timestamp": 1,
            });
            *ordered.pointer_mut(field).expect("a field") = json!(key);
            ordered.to_string()
        };
        for (number, body) in [
            ordered("/command_id"),
            ordered("/effect_name"),
            ordered("/reply_to/saga"),
            ordered("/reply_to/step"),
            ordered("/cancel"),
            ordered("/result_type"),
            json!({ "tenant_id": tenant, "request_id": "r", "correlation": "x", "verb": { &key: {} } }).to_string(),
            json!({ &key: 1, "event_id": "b", "type": key, "data": {}, "metadata": { "correlation_id": key } }).to_string(),
            json!({ "event_id": "c", "type": "Placed", "tenant_id": key, "data": {}, "metadata": {} }).to_string(),
            format!("{{\"{INJECTED}{mark}"),
            format!("{INJECTED}{mark}"),
        ]
        .into_iter()
        .enumerate()
        {
            for subject in ["aggregate.Order.x".to_owned(), "workflow.order.x".to_owned(), format!("effect.pay.{command}"), format!("effect_result.pay.{command}")] {
                self.raw(format!("tenant.{tenant}.{subject}"), &format!("broken-{number}"), body.clone().into()).await;
            }
        }
    }

    /// Waits until a tenant has so many instances, and all of them wait.
    async fn until_all_wait(&self, tenant: &str, admin: u32, count: usize) {
        let all_wait = async || {
            let steps = self.steps(tenant, admin).await;
            (steps.len() == count && steps.iter().all(|step| step == "wait")).then_some(())
        };
        wait_until(all_wait, 2 * PATIENCE, "everything waits").await;
    }

    /// Steps of the instances of a tenant.
    async fn steps(&self, tenant: &str, admin: u32) -> Vec<String> {
        let request =
            v1::ListSagasRequest { tenant_id: tenant.to_owned(), page_size: 1000, ..Default::default() };
        let page = self.client(admin).list_sagas(request).await.expect("a page").into_inner();
        page.sagas.into_iter().map(|found| found.step).collect()
    }
}

/// Checks what the ops port says to the gateway, which asks for each tenant.
fn look_at_pages(saga: &ReplicaProcess) {
    let bearer = format!("authorization: Bearer {SECRET}\r\n");
    for (tenant, _) in BOTH {
        let other = other_than(tenant);
        let of_tenant = format!("{bearer}x-tenant-id: {tenant}\r\n");
        let (status, info) = saga.ask_with("/info", &of_tenant).expect("told");
        assert_eq!(status, 200);
        let details: Value = serde_json::from_str(&info).expect("JSON");
        let sagas: Vec<_> = details["details"]["sagas"].as_object().expect("sagas").keys().cloned().collect();
        assert_eq!(sagas, ["b-order".to_owned(), "order".to_owned(), own(tenant)]);
        let (_, health) = saga.ask_with("/health", &of_tenant).expect("told");
        let (status, metrics) = saga.ask_with("/metrics", &of_tenant).expect("told");
        assert_eq!(status, 400, "there is no part of a tenant: {metrics}");
        for secret in
            [own(other), data_of(other), mark_of(other), format!(":{other}:"), format!("tenant.{other}.")]
        {
            assert!(
                ![&info, &health, &metrics].iter().any(|page| page.contains(&secret)),
                "{tenant} is shown {secret}"
            );
        }
    }
    for headers in ["", &bearer] {
        let (_, metrics) = saga.ask_with("/metrics", headers).expect("told");
        for (tenant, _) in BOTH {
            for secret in [
                own(tenant),
                data_of(tenant),
                mark_of(tenant),
                format!("\"{tenant}\""),
                format!(":{tenant}:"),
                "tenant=".to_owned(),
            ] {
                assert!(!metrics.contains(&secret), "{secret}: {metrics}");
            }
        }
    }
}

/// Checks that each line of the log is one entry, and contains nothing of another tenant than the one that it is about.
fn look_at_log(log: &str) {
    for line in log.split('\n').filter(|line| !line.is_empty()) {
        assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
        assert!(line.starts_with("20") && line.as_bytes()[4] == b'-', "it is no line of ours: {line:?}");
        for (tenant, _) in BOTH {
            let other = other_than(tenant);
            let is_about = [format!(":{tenant}:"), format!("tenant.{tenant}."), mark_of(tenant)]
                .iter()
                .any(|text| line.contains(text));
            let is_shown = [format!(":{other}:"), format!("tenant.{other}."), mark_of(other), own(other)]
                .iter()
                .any(|text| line.contains(text));
            assert!(!(is_about && is_shown), "{line}");
            assert!(!line.contains(&data_of(tenant)), "payloads are not logged: {line}");
        }
    }
    for (tenant, _) in BOTH {
        assert!(log.contains(&format!("s:{tenant}:order:0")) && log.contains(&mark_of(tenant)), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_line_of_the_log_and_no_page_shows_another_tenant() {
    let upstream = Upstream::start();
    let mut apart = Apart::start(&upstream).await;
    let correlations: Vec<_> = hostile().into_iter().filter(|text| text.len() < 200).collect();
    for (tenant, admin) in BOTH {
        apart.apply_own(tenant, admin).await;
        for (number, correlation) in correlations.iter().enumerate() {
            let correlation = format!("{correlation}{}", mark_of(tenant));
            apart.event(tenant, "Placed", &format!("e-{number}"), &correlation).await;
            apart.event(tenant, "Wrong", &format!("w-{number}"), &correlation).await;
        }
        apart.break_in(tenant).await;
    }
    for (tenant, admin) in BOTH {
        apart.until_all_wait(tenant, admin, 1 + 2 * correlations.len()).await;
        // A dead letter of each saga with more behind it than can be held, which the log reports.
        let correlation = format!("{INJECTED}{}", mark_of(tenant));
        apart.event(tenant, "Placed", "full", &correlation).await;
        apart.until_all_wait(tenant, admin, 3 + 2 * correlations.len()).await;
        for number in 0..=BEHIND {
            apart.event(tenant, "Wrong", &format!("behind-{number}"), &correlation).await;
        }
        let is_reported =
            |line: &&str| line.contains("no room to hold another input") && line.contains(&mark_of(tenant));
        let report = async || apart.saga.process.output().lines().find(is_reported).map(str::to_owned);
        wait_until(report, PATIENCE, "it is told that there is no room").await;
    }
    look_at_pages(&apart.saga);
    apart.saga.process.terminate();
    assert!(apart.saga.process.wait(PATIENCE).success());
    look_at_log(&apart.saga.process.output());
}
