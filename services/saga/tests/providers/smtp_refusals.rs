//! Servers that take no mail, or do not say whether they did.

use saga::providers::{CallProvider as _, ProviderCall};
use testkit::free_port;
use workflow::ledger::ProviderAnswer;

use crate::sink::{Answers, CUT, HANG, SmtpSink, Tls};
use crate::smtp::mail_by;
use crate::stage::{CANARY, Stage, call, failure, passing, provider, unknown};
use crate::upstream::without_canary;

const EFFECT: &str = "effects:\n  e: { to: [ann@home.test, bob@home.test], subject: s, text: t }\n";
const PLAIN: &str = "tls: none, from: [shop@shop.test]";

/// Sends a mail to a server that answers one thing in its own way.
async fn after(to: &'static str, answer: &str) -> (ProviderAnswer, ProviderCall, SmtpSink) {
    let stage = Stage::new();
    let sink = SmtpSink::start(Tls::Never, Answers::from([(to, answer.to_owned())])).await;
    let definition = mail_by(&sink, PLAIN, EFFECT);
    let call = call(&definition, "{}");
    (stage.smtp(&definition).call(&call).await, call, sink)
}

/// Drops a call once the server says nothing any more, and says whether the mail may have been sent.
async fn dropped(at: &'static str) -> bool {
    let stage = Stage::new();
    let sink = SmtpSink::start(Tls::Never, Answers::from([(at, HANG.to_owned())])).await;
    let definition = mail_by(&sink, PLAIN, EFFECT);
    let (provider, call) = (stage.smtp(&definition), call(&definition, "{}"));
    tokio::select! {
        answer = provider.call(&call) => panic!("it has an answer: {answer:?}"),
        () = sink.hangs() => {}
    }
    call.sent.is_raised()
}

#[tokio::test]
async fn what_a_server_cannot_do_now_passes() {
    for to in ["connection", "EHLO", "MAIL", "RCPT", "DATA", "mail"] {
        let (found, call, sink) = after(to, "451 not now").await;
        assert!(passing(&found).contains("451: not now"), "{to}: {found:?}");
        assert_eq!(call.sent.is_raised(), to == "mail", "{to}");
        assert!(sink.mails().is_empty());
    }
    // About the server, not about the mail.
    for (to, answer) in [("connection", "554 no service"), ("EHLO", "502 what?"), ("connection", "421 busy")]
    {
        let (found, call, _) = after(to, answer).await;
        assert!(passing(&found).contains(&answer[..3]), "{found:?}");
        assert!(!call.sent.is_raised());
    }
}

#[tokio::test]
async fn what_a_server_will_not_do_is_a_failure() {
    for (to, answer, code) in [
        ("MAIL", "550 not you", "smtp_550"),
        ("RCPT", "550-no\r\n550 such user", "smtp_550"),
        ("RCPT", "553 no mailbox", "smtp_553"),
        ("DATA", "554 no", "smtp_554"),
        ("mail", "552 too much", "smtp_552"),
    ] {
        let (found, _, sink) = after(to, answer).await;
        let (found, payload) = failure(&found);
        assert_eq!(found, code, "{to}");
        assert!(payload.contains(to) && payload.contains(&format!("\"code\":\"{code}\"")), "{payload}");
        assert!(sink.mails().is_empty());
    }
}

#[tokio::test]
async fn a_connection_that_breaks_before_the_end_of_the_mail_passes() {
    for to in ["connection", "EHLO", "MAIL", "RCPT", "DATA"] {
        let (found, call, _) = after(to, CUT).await;
        let why = passing(&found);
        assert!(why.contains("closed the connection") || why.contains("broke"), "{to}: {why}");
        assert!(!call.sent.is_raised(), "{to}");
        assert!(!dropped(to).await, "{to}");
    }
}

#[tokio::test]
async fn a_connection_that_breaks_after_the_end_of_the_mail_leaves_it_open() {
    for answer in [CUT, "354 go on", "nonsense", "250-a\r\n550 b"] {
        let (found, call, sink) = after("mail", answer).await;
        assert!(unknown(&found).contains("the mail was sent"), "{answer}: {found:?}");
        assert!(call.sent.is_raised());
        assert!(answer != CUT || sink.mails().len() == 1, "it was taken, and nobody knows");
    }
    assert!(dropped("mail").await);
}

#[tokio::test]
async fn replies_have_a_limit() {
    let long = format!("220 {}", "x".repeat(5000));
    let endless = "220-x\r\n".repeat(500);
    for answer in [long.as_str(), endless.as_str(), "220-a\r\n250 b", "HTTP/1.1 400 Bad Request"] {
        let (found, call, _) = after("connection", answer).await;
        assert!(passing(&found).contains("does not speak SMTP"), "{found:?}");
        assert!(!call.sent.is_raised());
    }
}

#[tokio::test]
async fn what_is_not_encrypted_as_it_should_be_gets_no_mail() {
    let stage = Stage::new();
    let transport = "starttls: required, from: [shop@shop.test], ca: \"secret:ca\", \
                     auth: { user: shop, password: \"secret:token\" }";
    let start = |name: &str| Tls::Later(stage.acceptor(name));
    let injected = Answers::from([("STARTTLS", "220 go on\r\n250 injected\r\n".to_owned())]);
    for (tls, answers, part) in [
        (Tls::Never, Answers::new(), "does not offer STARTTLS"),
        (start("localhost"), Answers::from([("STARTTLS", "454 not now".to_owned())]), "454"),
        (start("localhost"), injected, ""),
        (start("other.test"), Answers::new(), "certificate"),
    ] {
        let sink = SmtpSink::start(tls, answers).await;
        let definition = mail_by(&sink, transport, EFFECT);
        let call = call(&definition, "{}");
        let found = stage.smtp(&definition).call(&call).await;
        assert!(passing(&found).contains(part), "{found:?}");
        assert!(!call.sent.is_raised() && sink.mails().is_empty());
        assert!(sink.connections().await > 0);
    }
    // An authority of its own is the only one.
    for tls in ["tls: implicit", "starttls: required"] {
        let acceptor = stage.acceptor("localhost");
        let server = if tls == "tls: implicit" { Tls::AtOnce(acceptor) } else { Tls::Later(acceptor) };
        let sink = SmtpSink::start(server, Answers::new()).await;
        let definition =
            mail_by(&sink, &format!("{tls}, from: [shop@shop.test], ca: \"secret:other-ca\""), EFFECT);
        let found = stage.smtp(&definition).call(&call(&definition, "{}")).await;
        assert!(passing(&found).contains("certificate"), "{found:?}");
    }
}

#[tokio::test]
async fn a_password_is_shown_by_no_answer() {
    let logs = crate::secrets::Logs::record();
    let stage = Stage::new();
    let transport = "tls: implicit, from: [shop@shop.test], ca: \"secret:ca\", auth: { user: shop, password: \"secret:token\" }";
    for answers in [
        Answers::from([("AUTH", format!("535 {CANARY} is wrong"))]),
        Answers::from([("EHLO", "250-x\r\n250 AUTH LOGIN".to_owned()), ("AUTH", format!("535 {CANARY}"))]),
        Answers::from([("EHLO", "250-x\r\n250 AUTH LOGIN".to_owned()), ("334", format!("535 {CANARY}"))]),
        Answers::from([("EHLO", "250-x\r\n250 AUTH XOAUTH2".to_owned())]),
        Answers::from([("AUTH", CUT.to_owned())]),
    ] {
        let sink = SmtpSink::start(Tls::AtOnce(stage.acceptor("localhost")), answers).await;
        let definition = mail_by(&sink, transport, EFFECT);
        let (provider, call) = (stage.smtp(&definition), call(&definition, "{}"));
        let found = provider.call(&call).await;
        passing(&found);
        without_canary(&format!("{found:?} {provider:?} {call:?}"));
        assert!(sink.mails().is_empty());
    }
    stage.keep("token", CANARY);
    stage.set_mode("token", 0o644);
    let sink = SmtpSink::start(Tls::AtOnce(stage.acceptor("localhost")), Answers::new()).await;
    let definition = mail_by(&sink, transport, EFFECT);
    let found = stage.smtp(&definition).call(&call(&definition, "{}")).await;
    assert!(passing(&found).contains("secret:token"), "{found:?}");
    without_canary(&format!("{found:?}"));
    without_canary(&logs.text());
}

#[tokio::test]
async fn a_server_that_is_not_allowed_is_never_connected_to() {
    let stage = Stage::new();
    let sink = SmtpSink::start(Tls::Never, Answers::new()).await;
    for host in ["localhost", "127.0.0.1", "\"::ffff:127.0.0.1\"", "169.254.169.254"] {
        let definition = provider(&format!(
            "transport: smtp\nsmtp: {{ host: {host}, port: {}, {PLAIN} }}\n{EFFECT}",
            sink.port
        ));
        let call = call(&definition, "{}");
        let found = stage.smtp(&definition).call(&call).await;
        let (code, payload) = failure(&found);
        assert!(code == "egress" && payload.contains("\"rule\":\"private\""), "{host}: {payload}");
        assert!(!call.sent.is_raised());
    }
    assert_eq!(sink.connections().await, 0);
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_passes() {
    let stage = Stage::new();
    for (host, part) in [("localhost", "refused"), ("no-such-host.invalid", "no-such-host.invalid")] {
        let definition = provider(&format!(
            "transport: smtp\nsmtp: {{ host: {host}, port: {}, private: true, {PLAIN} }}\n{EFFECT}",
            free_port()
        ));
        let call = call(&definition, "{}");
        let found = stage.smtp(&definition).call(&call).await;
        assert!(passing(&found).contains(part), "{found:?}");
        assert!(!call.sent.is_raised());
    }
}

#[tokio::test]
async fn a_transport_without_senders_is_refused() {
    let stage = Stage::new();
    let sink = SmtpSink::start(Tls::Never, Answers::new()).await;
    let definition = mail_by(&sink, PLAIN, EFFECT);
    let workflow::provider::ProviderTransport::Smtp(transport) = &definition.transport else {
        panic!("it is SMTP")
    };
    for (from, part) in
        [(vec![], "no sender"), (vec!["Shop <shop@shop.test>"], "neither an address"), (vec!["*"], "neither")]
    {
        let mut transport = transport.clone();
        transport.from = from.into_iter().map(str::to_owned).collect();
        let secrets = std::sync::Arc::new(saga::secrets::Secrets::in_directory(stage.directory()));
        let made = saga::providers::smtp::SmtpProvider::new(
            &transport,
            secrets,
            egress::TrustAnchors::from_system(),
        );
        assert!(made.expect_err(part).to_string().contains(part));
    }
}
