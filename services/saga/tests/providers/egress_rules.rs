//! Hosts that are not for effects are never connected to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use egress::HostResolver;
use saga::providers::CallProvider as _;
use workflow::ledger::ProviderAnswer;

use crate::sink::{Answers, SmtpSink, Tls};
use crate::stage::{Names, Stage, call, failure, passing, provider};
use crate::upstream::{Upstream, answer};

#[tokio::test]
async fn what_is_not_allowed_is_never_connected_to() {
    let stage = Stage::new();
    // Without TLS, so that a connection is all it takes.
    let upstream = Upstream::start(None, |_| answer(200, &[], "{}")).await;
    let port = upstream.port;
    let other = port ^ 1;
    for (base, hosts, is_private, rule) in [
        // Another name, another port, the port of the scheme.
        ("localhost", "[pay.test]".to_owned(), true, "allow_hosts"),
        ("localhost", format!("[\"localhost:{other}\"]"), true, "allow_hosts"),
        ("localhost", "[localhost]".to_owned(), true, "allow_hosts"),
        ("127.0.0.1", format!("[\"localhost:{port}\"]"), true, "allow_hosts"),
        ("localhost.evil.test", format!("[\"localhost:{port}\"]"), true, "allow_hosts"),
        // Listed, but they lead to this machine and its neighbors.
        ("localhost", format!("[\"localhost:{port}\"]"), false, "private"),
        ("LOCALHOST", format!("[\"localhost:{port}\"]"), false, "private"),
        ("127.0.0.1", format!("[\"127.0.0.1:{port}\"]"), false, "private"),
        ("2130706433", format!("[\"2130706433:{port}\"]"), false, "private"),
        ("[::ffff:127.0.0.1]", format!("[\"[::ffff:127.0.0.1]:{port}\"]"), false, "private"),
        ("169.254.169.254", format!("[\"169.254.169.254:{port}\"]"), false, "private"),
        ("10.0.0.1", format!("[\"10.0.0.1:{port}\"]"), false, "private"),
        ("0.0.0.0", format!("[\"0.0.0.0:{port}\"]"), false, "private"),
    ] {
        let definition = provider(&format!(
            "transport: http\nhttp: {{ base_url: \"http://{base}:{port}\", allow_hosts: {hosts}, private: {is_private} }}\n\
             effects:\n  e: {{ request: {{ method: POST, path: /x }} }}\n"
        ));
        let call = call(&definition, "{}");
        let answer = stage.http(&definition).call(&call).await;
        let (code, payload) = failure(&answer);
        assert_eq!(code, "egress", "{base}");
        assert!(payload.contains(&format!("\"host\":\"{base}:{port}\"")), "{payload}");
        assert!(payload.contains(&format!("\"rule\":\"{rule}\"")), "{base}: {payload}");
        assert!(!call.sent.is_raised());
    }
    assert_eq!(upstream.connections().await, 0);
}

#[tokio::test]
async fn what_is_allowed_is_reached() {
    let stage = Stage::new();
    let upstream = Upstream::start(None, |_| answer(200, &[], "{}")).await;
    let port = upstream.port;
    for host in ["localhost", "127.0.0.1"] {
        let definition = provider(&format!(
            "transport: http\nhttp: {{ base_url: \"http://{host}:{port}\", allow_hosts: [\"{host}:{port}\"], private: true }}\n\
             effects:\n  e: {{ request: {{ method: POST, path: /x }} }}\n"
        ));
        stage.http(&definition).call(&call(&definition, "{}")).await;
    }
    assert_eq!(upstream.requests().len(), 2);
}

#[tokio::test]
async fn a_question_goes_by_the_same_rules() {
    let stage = Stage::new();
    let upstream = Upstream::start(None, |_| answer(200, &[], "{}")).await;
    let port = upstream.port;
    let definition = provider(&format!(
        "transport: http\nhttp: {{ base_url: \"http://localhost:{port}\", allow_hosts: [\"localhost:{port}\"] }}\n\
         effects:\n  e: {{ request: {{ method: POST, path: /x }}, \
         unknown_outcome: {{ query: {{ path: /x, absent: status == 404 }} }} }}\n"
    ));
    assert_eq!(stage.http(&definition).ask(&call(&definition, "{}")).await, None);
    assert_eq!(upstream.connections().await, 0);
}

/// Internal addresses that an allowed name may resolve to: this machine, its neighbors, and the metadata services of clouds.
const INSIDE: [&str; 15] = [
    "127.0.0.1",
    "127.255.255.254",
    "::1",
    "::ffff:127.0.0.1",
    "0.0.0.0",
    "::",
    "10.0.0.7",
    "169.254.1.1",
    "fe80::1",
    // Metadata: of most clouds, in two other forms, of AWS by IPv6, of Alibaba, of Oracle.
    "169.254.169.254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "fd00:ec2::254",
    "100.100.100.200",
    "192.0.0.192",
];

fn http_of(host: &str, port: u16, is_private: bool) -> Arc<workflow::provider::EffectProvider> {
    provider(&format!(
        "transport: http\nhttp: {{ base_url: \"http://{host}:{port}\", allow_hosts: [\"{host}:{port}\"], private: {is_private} }}\n\
         effects:\n  e: {{ request: {{ method: POST, path: /x }} }}\n"
    ))
}

#[tokio::test]
async fn a_listed_name_that_leads_inside_is_refused_with_the_address_and_never_connected_to() {
    let stage = Stage::new();
    let upstream = Upstream::start(None, |_| answer(200, &[], "{}")).await;
    let sink = SmtpSink::start(Tls::Never, Answers::new()).await;
    let mail = provider(&format!(
        "transport: smtp\nsmtp: {{ host: good.test, port: {}, tls: none, from: [shop@shop.test] }}\n\
         effects:\n  e: {{ to: [ann@home.test], subject: s, text: t }}\n",
        sink.port
    ));
    let web = http_of("good.test", upstream.port, false);
    let all = INSIDE.join(" ");
    for addresses in INSIDE.into_iter().chain(["169.254.169.254 127.0.0.1", &all]) {
        let names = Arc::new(Names::from([("good.test", addresses)]));
        let (web_call, mail_call) = (call(&web, "{}"), call(&mail, "{}"));
        let web_answer = stage.http(&web).resolved_by(names.clone()).call(&web_call).await;
        let mail_answer = stage.smtp(&mail).resolved_by(names).call(&mail_call).await;
        let first = addresses.split(' ').next().expect("one");
        for (found, port) in [(web_answer, upstream.port), (mail_answer, sink.port)] {
            let (code, payload) = failure(&found);
            assert_eq!(code, "egress", "{addresses}");
            assert!(payload.contains("\"rule\":\"private\""), "{payload}");
            assert!(payload.contains(&format!("\"host\":\"good.test:{port}\"")), "{payload}");
            assert!(payload.contains(&format!("({first})")), "{first}: {payload}");
        }
        assert!(!web_call.sent.is_raised() && !mail_call.sent.is_raised());
    }
    assert_eq!((upstream.connections().await, sink.connections().await), (0, 0));

    // The same name is reached where the operator allows it.
    let names = Arc::new(Names::from([("good.test", "127.0.0.1")]));
    let web = http_of("good.test", upstream.port, true);
    let found = stage.http(&web).resolved_by(names).call(&call(&web, "{}")).await;
    assert!(matches!(found, ProviderAnswer::Succeeded(_)), "{found:?}");
    assert_eq!(upstream.only().header("host"), Some(format!("good.test:{}", upstream.port).as_str()));
}

/// A resolver that gives one address when it is asked first, and another one ever after.
#[derive(Debug, Default)]
struct Rebound(AtomicUsize);

#[async_trait]
impl HostResolver for Rebound {
    async fn resolve(&self, _: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let is_first = self.0.fetch_add(1, Ordering::SeqCst) == 0;
        Ok(vec![SocketAddr::from(([127, 0, 0, if is_first { 1 } else { 2 }], port))])
    }
}

#[tokio::test]
async fn what_was_looked_at_is_what_is_connected_to() {
    let stage = Stage::new();
    let upstream = Upstream::start(None, |_| answer(200, &[], "{}")).await;
    let definition = http_of("good.test", upstream.port, true);
    let rebound = Arc::new(Rebound::default());
    let http = stage.http(&definition).resolved_by(rebound.clone());
    let found = http.call(&call(&definition, "{}")).await;
    assert!(matches!(found, ProviderAnswer::Succeeded(_)), "{found:?}");
    assert_eq!(rebound.0.load(Ordering::SeqCst), 1, "nobody asks again where the name leads");
    // The name resolves to an address where no server listens.
    let found = http.call(&call(&definition, "{}")).await;
    assert!(passing(&found).contains(&format!("127.0.0.2:{}", upstream.port)), "{found:?}");
    upstream.only();
}
