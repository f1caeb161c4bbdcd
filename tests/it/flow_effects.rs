//! Effects that are flows: the provider of the saga service against a whole suite, as an actor by the tokens that its key signs.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use identity::TrustDomain;
use model::{CommandId, ContextId, Timestamp};
use mycora_cli::profile::Profile;
use saga::effects::CallMessage;
use saga::providers::flow::{EffectFlowEnvironment, FlowFiles, FlowProvider};
use saga::providers::{CallProvider as _, ProviderCall, SentFlag};
use saga::secrets::Secrets;
use testkit::{FaultProxy, ProxyFault, ProxyTarget, wait_until};
use tokio::sync::mpsc;
use workflow::Json;
use workflow::ledger::ProviderAnswer;
use workflow::manifest::{self, ManifestDefinition};
use workflow::provider::{EffectProvider as Defined, ProviderTransport};

use crate::scene::Scene;
use crate::suite::{PATIENCE, stdout};

const LABEL: &str =
    "name: label\njobs:\n  label: { script_type: shell, script: 'echo code=$ORDER >> \"$MYCORA_RESULT\"' }\n";
const BAD: &str = "name: bad\njobs:\n  good: { script_type: shell, script: 'true' }\n  \
    print: { script_type: shell, script: 'exit 3', depends: [good] }\n";
const LIVES: &str =
    "name: lives\njobs:\n  label: { script_type: rhai, script: '()', prerequisites: [go, more] }\n";
const WAITS: &str = "name: waits\njobs:\n  label: { script_type: rhai, script: '()', prerequisites: [go] }\n";

/// A suite, and what a saga service would keep beside it.
struct Stage {
    scene: Scene,
    defined: Defined,
}

/// A provider, and the ends that it reports.
struct ObservedProvider {
    provider: FlowProvider,
    ends: mpsc::UnboundedReceiver<(CommandId, ProviderAnswer)>,
    /// Calls whose flows were reported alive.
    beats: mpsc::UnboundedReceiver<CommandId>,
}

impl Stage {
    fn new() -> Self {
        let scene = Scene::new(&[]);
        let secrets = scene.path().join("secrets");
        std::fs::create_dir(&secrets).expect("a directory");
        // The key that the suite's first actor is registered with. Copies have the mode of what they were copied from.
        let key = scene.path().join("data/actor-1.ed25519");
        std::fs::copy(key, secrets.join("actor-1")).expect("a key");
        let mut text = "kind: EffectProvider\nname: flows\ntransport: flow\n\
            flow: { actor: 1, signing_key: \"secret:actor-1\" }\neffects:\n"
            .to_owned();
        for (name, flow) in [("label", LABEL), ("bad", BAD), ("waits", WAITS), ("lives", LIVES)] {
            std::fs::write(scene.path().join(format!("{name}.yaml")), flow).expect("written");
            let timeouts = if name == "lives" { ", timeouts: { heartbeat: 1m }" } else { "" };
            text.push_str(&format!(
                "  {name}: {{ flow_file: {name}.yaml, env: {{ ORDER: \"${{{{ input.order_id }}}}\" }}{timeouts} }}\n"
            ));
        }
        let mut documents =
            manifest::read("flows.yaml", &text).unwrap_or_else(|problems| panic!("{problems}"));
        let Some(ManifestDefinition::Provider(defined)) = documents.pop().map(|document| document.definition)
        else {
            panic!("no provider")
        };
        Self { scene, defined: (*defined).clone() }
    }

    /// A way to the suite, without a certificate, for what listens at this port.
    fn channel(&self, port: u16) -> rpc::Channel {
        let profile = Profile::load(&self.scene.up.profile()).expect("a profile");
        let address = format!("https://{}", SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let anonymous = Profile { address: Some(address), cert: None, key: None, ..profile };
        anonymous.channel().expect("a channel")
    }

    fn provider(&self) -> ObservedProvider {
        self.provider_at(self.scene.up.port())
    }

    fn provider_at(&self, port: u16) -> ObservedProvider {
        let ProviderTransport::Flow(transport) = &self.defined.transport else { panic!("a flow") };
        let files = FlowFiles::read(&self.defined.effects, self.scene.path()).expect("they are good");
        let (to, ends) = mpsc::unbounded_channel();
        let (to_beats, beats) = mpsc::unbounded_channel();
        let around = EffectFlowEnvironment {
            scheduler: self.channel(port),
            storage: self.channel(port),
            trust_domain: TrustDomain::default(),
            secrets: Arc::new(Secrets::in_directory(self.scene.path().join("secrets"))),
            context_of: Arc::new(|_| Some(ContextId(1))),
            notify: Arc::new(move |command, message| match message {
                CallMessage::Answer(answer) => to.send((command, answer)).is_ok(),
                // Whether flows are followed is up to each test.
                CallMessage::Beat => to_beats.send(command).is_ok(),
                message => panic!("{message:?}"),
            }),
        };
        ObservedProvider { provider: FlowProvider::new(transport, files, around), ends, beats }
    }

    /// A call of an effect, ordered this long ago. Equal numbers are one command.
    fn call(&self, effect: &str, number: u128, ago: Duration) -> ProviderCall {
        let effect =
            self.defined.effects.iter().find(|known| known.name.as_str() == effect).expect("such an effect");
        let millis = u128::from(Timestamp::now().as_millis()) - ago.as_millis();
        // One number is ordered within one hour.
        let hours = millis - millis % 3_600_000;
        ProviderCall {
            tenant: "acme".parse().expect("a tenant"),
            command: CommandId::from_bits(hours << 80 | 7 << 76 | 2 << 62 | number),
            effect: Arc::clone(effect),
            input: Arc::new(Json::object([("order_id", Json::text(format_args!("o-{number}")))])),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
            callback_token: None,
            sent: SentFlag::default(),
        }
    }

    /// Flows of calls that there are.
    fn flows(&self) -> usize {
        let list = self.scene.json(&["flow", "list", "--name", "saga-"], 0);
        list["flows"].as_array().expect("flows").len()
    }

    fn signal(&self, flow: &str) {
        stdout(&self.scene.up.mycora(&["flow", "signal", flow, "go"]), 0);
    }
}

impl ObservedProvider {
    /// Makes a call that is waited for; gives the number of its flow.
    async fn begin(&self, call: &ProviderCall) -> String {
        let answer = self.provider.call(call).await;
        let ProviderAnswer::Waiting { external: Some(flow) } = answer else { panic!("{answer:?}") };
        flow
    }

    /// The next reported end, which is of this call.
    async fn end(&mut self, call: &ProviderCall) -> ProviderAnswer {
        let received = tokio::time::timeout(PATIENCE, self.ends.recv()).await;
        let (command, answer) = received.expect("an end is told").expect("the provider lives");
        assert_eq!(command, call.command);
        answer
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

fn label(code: &str) -> ProviderAnswer {
    ProviderAnswer::Succeeded(Json::object([("label", Json::object([("code", Json::text(code))]))]))
}

/// Whatever was forgotten or sent meanwhile, a command has one flow.
#[test]
fn a_flow_runs_once_for_a_command_and_its_result_is_the_answer() {
    let stage = Stage::new();
    runtime().block_on(async {
        let mut observed = stage.provider();
        let call = stage.call("label", 1, Duration::ZERO);
        assert_eq!(
            observed.provider.ask(&call).await,
            Some(ProviderAnswer::Passing { why: "it was never submitted".to_owned(), after: None })
        );
        observed.begin(&call).await;
        assert!(call.sent.is_raised());
        assert_eq!(observed.end(&call).await, label("o-1"));
        assert_eq!(observed.provider.call(&call).await, label("o-1"));
        assert_eq!(observed.provider.ask(&call).await, Some(label("o-1")));
        let other = ProviderCall {
            input: Arc::new(Json::object([("order_id", Json::text("other"))])),
            ..call.clone()
        };
        assert_eq!(observed.provider.call(&other).await, label("o-1"), "its flow is that of the first time");
        assert_eq!(stage.flows(), 1);

        // Of an old command the scheduler has forgotten the request: its flow is found by its name.
        let old = stage.call("label", 2, Duration::from_secs(48 * 3600));
        observed.begin(&old).await;
        assert_eq!(observed.end(&old).await, label("o-2"));
        let again = ProviderCall { input: other.input, sent: SentFlag::default(), ..old.clone() };
        assert_eq!(observed.provider.call(&again).await, label("o-2"));
        assert!(!again.sent.is_raised(), "nothing was submitted");
        assert_eq!(stage.flows(), 2);
    });
    stage.scene.close();
}

#[test]
fn a_flow_that_fails_names_its_nodes_and_one_that_is_stopped_is_cancelled() {
    let stage = Stage::new();
    runtime().block_on(async {
        let mut observed = stage.provider();
        let bad = stage.call("bad", 1, Duration::ZERO);
        let flow = observed.begin(&bad).await;
        let ProviderAnswer::Failed { code, payload } = observed.end(&bad).await else { panic!("it fails") };
        assert_eq!(code, "flow_failed");
        let message = format!("the flow {flow} failed: `print` (EXIT_CODE)");
        assert_eq!(payload.get("message"), Some(&Json::Text(message)));
        let Some(Json::List(nodes)) = payload.get("nodes") else { panic!("{payload}") };
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes[0].get("exit_code"), Some(&Json::Int(3)));

        let waits = stage.call("waits", 2, Duration::ZERO);
        let flow = observed.begin(&waits).await;
        assert_eq!(observed.begin(&waits).await, flow, "it runs already");
        assert_eq!(
            observed.provider.ask(&waits).await,
            Some(ProviderAnswer::Waiting { external: Some(flow.clone()) }),
            "it is waited for from then on"
        );
        observed.provider.stop(&waits, &flow).await;
        assert_eq!(observed.end(&waits).await, ProviderAnswer::Cancelled);
        // Once more changes nothing.
        observed.provider.stop(&waits, &flow).await;
        assert_eq!(observed.provider.call(&waits).await, ProviderAnswer::Cancelled);
    });
    stage.scene.close();
}

#[test]
fn another_provider_reports_the_ends_of_flows_begun_before_it() {
    let stage = Stage::new();
    runtime().block_on(async {
        let calls: Vec<_> = (1..=3).map(|number| stage.call("waits", number, Duration::ZERO)).collect();
        let mut flows = Vec::new();
        let first = stage.provider();
        for call in &calls {
            flows.push(first.begin(call).await);
        }
        drop(first);
        let (ended, deleted, open) = (&flows[0], &flows[1], &flows[2]);
        for flow in [ended, deleted] {
            stage.signal(flow);
            assert_eq!(stage.scene.end(flow.parse().expect("a number")).status, "FINISHED");
        }
        stdout(&stage.scene.up.mycora(&["flow", "delete", deleted]), 0);

        let mut second = stage.provider();
        let took = |n: usize| second.provider.adopt(&calls[n], &flows[n]);
        took(0).await;
        assert_eq!(second.end(&calls[0]).await, ProviderAnswer::Succeeded(Json::object([])));
        second.provider.adopt(&calls[1], &flows[1]).await;
        let answer = second.end(&calls[1]).await;
        assert!(
            matches!(&answer, ProviderAnswer::Unknown { why } if why.contains("was deleted")),
            "{answer:?}"
        );
        second.provider.adopt(&calls[2], &flows[2]).await;
        stage.signal(open);
        assert_eq!(second.end(&calls[2]).await, ProviderAnswer::Succeeded(Json::object([])));
        // The same number under another name is another flow.
        let stranger = stage.call("waits", 9, Duration::ZERO);
        second.provider.adopt(&stranger, open).await;
        assert!(matches!(second.end(&stranger).await, ProviderAnswer::Unknown { .. }));
    });
    stage.scene.close();
}

/// Checks signs of life: what a flow does is one, and so is the suite's own where a flow does nothing for long.
#[test]
fn a_flow_that_has_a_heartbeat_shows_that_it_lives_and_no_other_does() {
    let stage = Stage::new();
    runtime().block_on(async {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, stage.scene.up.port()));
        let proxy = FaultProxy::start(ProxyTarget::Tcp(server)).await;
        let mut observed = stage.provider_at(proxy.address().port());
        let (lives, silent) =
            (stage.call("lives", 1, Duration::ZERO), stage.call("waits", 2, Duration::ZERO));
        let (flow, other) = (observed.begin(&lives).await, observed.begin(&silent).await);
        let beaten = async |observed: &mut ObservedProvider| {
            let beat = tokio::time::timeout(PATIENCE, observed.beats.recv()).await;
            beat.expect("it shows that it lives").expect("the provider lives")
        };
        // Nothing happens to it, and the watch reports that repeatedly.
        while observed.beats.try_recv().is_ok() {}
        assert_eq!(beaten(&mut observed).await, lives.command);
        // It goes on, behind another end of what is watched.
        proxy.set(ProxyFault::Cut);
        while observed.beats.try_recv().is_ok() {}
        proxy.restore();
        stdout(&stage.scene.up.mycora(&["flow", "signal", &flow, "more"]), 0);
        assert_eq!(beaten(&mut observed).await, lives.command);
        for flow in [&flow, &other] {
            stage.signal(flow);
        }
        for _ in 0..2 {
            let end = tokio::time::timeout(PATIENCE, observed.ends.recv()).await;
            assert_eq!(
                end.expect("in time").map(|end| end.1),
                Some(ProviderAnswer::Succeeded(Json::object([])))
            );
        }
        while let Ok(command) = observed.beats.try_recv() {
            assert_eq!(command, lives.command, "the other one has no heartbeat");
        }
    });
    stage.scene.close();
}

#[test]
fn each_end_is_reported_once_over_a_connection_that_is_cut() {
    const CALLS: u128 = 12;
    let stage = Stage::new();
    runtime().block_on(async {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, stage.scene.up.port()));
        let proxy = FaultProxy::start(ProxyTarget::Tcp(server)).await;
        let mut observed = stage.provider_at(proxy.address().port());
        let (mut calls, mut flows) = (Vec::new(), Vec::new());
        for number in 1..=CALLS {
            let call = stage.call("waits", number, Duration::ZERO);
            flows.push(observed.begin(&call).await);
            calls.push(call);
        }
        for (call, flow) in calls.iter().zip(&flows) {
            proxy.cut_once();
            stage.signal(flow);
            assert_eq!(observed.end(call).await, ProviderAnswer::Succeeded(Json::object([])));
        }
        assert_eq!(stage.flows() as u128, CALLS);
        assert!(observed.ends.is_empty(), "each is told once");
    });
    stage.scene.close();
}

#[test]
fn an_end_that_no_watch_can_report_any_more_is_looked_up() {
    let stage = Stage::new();
    runtime().block_on(async {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, stage.scene.up.port()));
        let proxy = FaultProxy::start(ProxyTarget::Tcp(server)).await;
        let mut observed = stage.provider_at(proxy.address().port());
        let (ends, runs) = (stage.call("waits", 1, Duration::ZERO), stage.call("waits", 2, Duration::ZERO));
        let (ending, running) = (observed.begin(&ends).await, observed.begin(&runs).await);
        proxy.set(ProxyFault::Cut);
        stage.signal(&ending);
        assert_eq!(stage.scene.end(ending.parse().expect("a number")).status, "FINISHED");
        stage.scene.up.redis(1, &["XTRIM", "events", "MAXLEN", "1"]);
        let refused = || {
            let unsent = stage.call("waits", 3, Duration::ZERO);
            let provider = &observed.provider;
            async move {
                let answer = provider.call(&unsent).await;
                matches!(answer, ProviderAnswer::Passing { .. }).then(|| assert!(!unsent.sent.is_raised()))
            }
        };
        wait_until(refused, PATIENCE, "nothing can be submitted").await;
        proxy.restore();
        assert_eq!(observed.end(&ends).await, ProviderAnswer::Succeeded(Json::object([])));
        stage.signal(&running);
        assert_eq!(observed.end(&runs).await, ProviderAnswer::Succeeded(Json::object([])));
        assert!(observed.ends.is_empty(), "each is told once");
    });
    stage.scene.close();
}
