//! Mails as servers get them.

use std::sync::Arc;

use saga::providers::CallProvider as _;
use workflow::ledger::ProviderAnswer;
use workflow::provider::EffectProvider;

use crate::sink::{Answers, SmtpSink, Tls};
use crate::stage::{CANARY, COMMAND, Stage, call, failure, json, provider};
use crate::upstream::without_canary;

/// A mail to whom the input says.
const MAIL: &str = "effects:\n  e: { to: \"${{ input.to }}\", subject: \"Order ${{ input.id }}\", text: \"${{ input.text }}\" }\n";
/// Everybody of the shop.
const SHOP: &str = "from: [\"*@shop.test\"]";

/// A provider of mail by a server on this machine.
pub(crate) fn mail_by(sink: &SmtpSink, transport: &str, effects: &str) -> Arc<EffectProvider> {
    let port = sink.port;
    provider(&format!(
        "transport: smtp\nsmtp: {{ host: localhost, port: {port}, private: true, {transport} }}\n{effects}"
    ))
}

fn message_id() -> ProviderAnswer {
    ProviderAnswer::Succeeded(json(&format!(r#"{{"message_id":"<{COMMAND}@localhost>"}}"#)))
}

#[tokio::test]
async fn a_mail_is_encrypted_and_names_its_sender() {
    let stage = Stage::new();
    let acceptor = stage.acceptor("localhost");
    for (tls, written) in
        [(Tls::Later(acceptor.clone()), "starttls: required"), (Tls::AtOnce(acceptor), "tls: implicit")]
    {
        let sink = SmtpSink::start(tls, Answers::new()).await;
        let auth = "auth: { user: shop, password: \"secret:token\" }, ca: \"secret:ca\"";
        let definition = mail_by(&sink, &format!("{written}, {SHOP}, {auth}"), MAIL);
        let call = call(&definition, r#"{"to":"ann@home.test","id":7,"text":"It is on its way."}"#);
        let provider = stage.smtp(&definition);
        assert_eq!(provider.call(&call).await, message_id());
        assert!(call.sent.is_raised());
        let mail = sink.only();
        assert!(mail.is_encrypted, "{written}");
        assert_eq!(
            (mail.from.as_str(), mail.to.as_slice()),
            ("<no-reply@shop.test>", &["<ann@home.test>".to_owned()][..])
        );
        for (name, value) in [
            ("From", "no-reply@shop.test"),
            ("To", "ann@home.test"),
            ("Subject", "Order 7"),
            ("Message-ID", &format!("<{COMMAND}@localhost>")),
            ("Content-Type", "text/plain; charset=utf-8"),
        ] {
            assert_eq!(mail.header(name), Some(value));
        }
        assert!(mail.header("Date").is_some());
        assert_eq!(mail.text(), "It is on its way.\r\n");
        // \0shop\0canary-5f0c1d
        assert_eq!(mail.login, ["AUTH PLAIN AHNob3AAY2FuYXJ5LTVmMGMxZA=="]);
        without_canary(&format!("{provider:?}"));
        assert_eq!(provider.ask(&call).await, None);
        // The same mail again is known by the same id.
        assert_eq!(provider.call(&call).await, message_id());
        assert_eq!(sink.mails()[1].header("Message-ID"), mail.header("Message-ID"));
    }
}

#[tokio::test]
async fn a_server_that_knows_login_only_gets_it() {
    let stage = Stage::new();
    let ehlo = Answers::from([("EHLO", "250-sink\r\n250 AUTH LOGIN".to_owned())]);
    let sink = SmtpSink::start(Tls::AtOnce(stage.acceptor("localhost")), ehlo).await;
    let transport = format!(
        "tls: implicit, {SHOP}, auth: {{ user: shop, password: \"secret:token\" }}, ca: \"secret:ca\""
    );
    let definition = mail_by(&sink, &transport, MAIL);
    let call = call(&definition, r#"{"to":"ann@home.test","id":7,"text":"x"}"#);
    assert_eq!(stage.smtp(&definition).call(&call).await, message_id());
    assert_eq!(sink.only().login, ["AUTH LOGIN", "c2hvcA==", "Y2FuYXJ5LTVmMGMxZA=="]);
    assert!(!sink.only().login.concat().contains(CANARY));
}

#[tokio::test]
async fn replies_of_strange_servers_are_read() {
    let stage = Stage::new();
    // A line of blanks ends lettre's own client.
    let ehlo = Answers::from([
        ("connection", "220-sink\r\n220-\r\n220".to_owned()),
        ("EHLO", "250-sink\r\n250-   \r\n250-\r\n250 X\n".to_owned()),
        ("DATA", "354".to_owned()),
    ]);
    let sink = SmtpSink::start(Tls::Never, ehlo).await;
    let definition = mail_by(&sink, &format!("tls: none, {SHOP}"), MAIL);
    let call = call(&definition, r#"{"to":"ann@home.test","id":7,"text":"x"}"#);
    assert_eq!(stage.smtp(&definition).call(&call).await, message_id());
}

#[tokio::test]
async fn an_effect_sends_as_whom_the_provider_lets_it() {
    let stage = Stage::new();
    let sink = SmtpSink::start(Tls::Never, Answers::new()).await;
    let effects = "effects:\n  e: { from: \"${{ input.from }}\", to: ann@home.test, subject: s, text: t }\n";
    let transport = "tls: none, from: [\"orders@shop.test\", \"*@mail.shop.test\"]";
    let definition = mail_by(&sink, transport, effects);
    let provider = stage.smtp(&definition);
    for from in ["orders@shop.test", "anybody@mail.shop.test", "Orders@MAIL.shop.test"] {
        let found = provider.call(&call(&definition, &format!(r#"{{"from":"{from}"}}"#))).await;
        assert_eq!(found, message_id(), "{from}");
    }
    let sent: Vec<_> = sink.mails().into_iter().map(|mail| mail.from).collect();
    assert_eq!(sent, ["<orders@shop.test>", "<anybody@mail.shop.test>", "<Orders@MAIL.shop.test>"]);
    for (from, part) in [
        ("boss@shop.test", "does not send as"),
        ("orders@shop.test.evil.test", "does not send as"),
        ("x@sub.mail.shop.test", "does not send as"),
        ("*@mail.shop.test", ""),
        ("orders@shop.test, boss@shop.test", "is no address"),
        ("Shop <orders@shop.test>", "is no address"),
        ("", "is no address"),
    ] {
        let call = call(&definition, &format!(r#"{{"from":"{from}"}}"#));
        let found = provider.call(&call).await;
        if from.starts_with('*') {
            // That is an address like another.
            assert_eq!(found, message_id());
            continue;
        }
        let (code, payload) = failure(&found);
        assert!(code == "request" && payload.contains(part), "{from}: {payload}");
        assert!(!call.sent.is_raised());
    }
    let nobody = mail_by(&sink, transport, "effects:\n  e: { to: ann@home.test, subject: s, text: t }\n");
    assert_eq!(stage.smtp(&nobody).call(&call(&nobody, "{}")).await, message_id());
    assert_eq!(sink.mails().last().map(|mail| mail.from.clone()), Some("<orders@shop.test>".to_owned()));
}

#[tokio::test]
async fn a_mail_goes_to_one_or_to_fifty() {
    let stage = Stage::new();
    let sink = SmtpSink::start(Tls::Never, Answers::new()).await;
    let definition = mail_by(&sink, &format!("tls: none, {SHOP}"), MAIL);
    let provider = stage.smtp(&definition);
    let to = |count: usize| {
        let list: Vec<_> = (0..count).map(|n| format!("\"a{n}@home.test\"")).collect();
        format!(r#"{{"to":[{}],"id":7,"text":"x"}}"#, list.join(","))
    };
    assert_eq!(provider.call(&call(&definition, &to(50))).await, message_id());
    let mail = sink.only();
    assert_eq!((mail.to.len(), mail.to[49].as_str()), (50, "<a49@home.test>"));
    for (input, part) in [
        (to(51), "1 to 50 recipients, not 51"),
        (to(0), "1 to 50 recipients, not 0"),
        (r#"{"to":null,"id":7,"text":"x"}"#.to_owned(), "not nothing"),
        (r#"{"to":[7],"id":7,"text":"x"}"#.to_owned(), "not a number"),
        (r#"{"to":"nobody","id":7,"text":"x"}"#.to_owned(), "is no address"),
        (r#"{"to":"a@b.test, c@d.test","id":7,"text":"x"}"#.to_owned(), "is no address"),
    ] {
        let found = provider.call(&call(&definition, &input)).await;
        let (code, payload) = failure(&found);
        assert!(code == "request" && payload.contains(part), "{payload}");
    }
    assert_eq!(sink.connections().await, 1);
}

#[tokio::test]
async fn no_text_adds_a_line_to_the_dialog_or_a_header() {
    let stage = Stage::new();
    let sink = SmtpSink::start(Tls::Never, Answers::new()).await;
    let definition = mail_by(&sink, &format!("tls: none, {SHOP}"), MAIL);
    let provider = stage.smtp(&definition);
    for (to, id) in [
        (r"ann@home.test\r\nRCPT TO:<evil@x.test>", "7"),
        (r"ann@home.test>\r\nDATA", "7"),
        (r#"\"ann\r\nX: y\"@home.test"#, "7"),
        (r"ann@home.test\u0000", "7"),
        ("ann@home.test", r"7\r\nBcc: evil@x.test"),
        ("ann@home.test", r"7\nX-Evil: 1"),
        ("ann@home.test", r"7\r.\r"),
        ("ann@home.test", r"7\u0000"),
    ] {
        let call = call(&definition, &format!(r#"{{"to":"{to}","id":"{id}","text":"x"}}"#));
        let found = provider.call(&call).await;
        assert_eq!(failure(&found).0, "request", "{to} {id}");
        assert!(!call.sent.is_raised());
    }
    assert_eq!(sink.connections().await, 0, "nothing was said to the server");
}

#[tokio::test]
async fn a_text_arrives_as_it_was() {
    let stage = Stage::new();
    let sink = SmtpSink::start(Tls::Never, Answers::new()).await;
    let definition = mail_by(&sink, &format!("tls: none, {SHOP}"), MAIL);
    let provider = stage.smtp(&definition);
    let dots = r#"{"to":"ann@home.test","id":"ü","text":"a\n.\n..b\r\n.\r\nMAIL FROM:<evil@x.test>\r.\rc"}"#;
    assert_eq!(provider.call(&call(&definition, dots)).await, message_id());
    let mail = sink.only();
    assert_eq!(mail.text(), "a\r\n.\r\n..b\r\n.\r\nMAIL FROM:<evil@x.test>\r\n.\r\nc\r\n");
    assert_eq!(mail.header("Subject"), Some("Order =?utf-8?b?w7w=?="));
    let beyond = r#"{"to":"ann@home.test","id":7,"text":"Grüße\n.\n"}"#;
    assert_eq!(provider.call(&call(&definition, beyond)).await, message_id());
    let mail = sink.mails().pop().expect("a mail");
    assert!(mail.content.is_ascii(), "{}", mail.content);
    assert!(
        mail.text().starts_with("Gr=C3=BC=C3=9Fe\r\n")
            || mail.header("Content-Transfer-Encoding") == Some("base64")
    );
}
