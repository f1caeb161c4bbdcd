//! A mail, from templates.

use std::net::IpAddr;

use lettre::message::header::{ContentTransferEncoding, ContentType};
use lettre::message::{Body, Mailbox};
use lettre::{Address, Message};
use workflow::Json;
use workflow::formula::{ValueTemplate, VariableScope};
use workflow::provider::MailTemplate;

use super::RECIPIENTS_MAX;
use crate::providers::ProviderCall;
use crate::providers::http::RequestBuildError;

/// Characters of a subject. A longer subject is a text in the wrong field.
const SUBJECT_CHARS_MAX: usize = 500;
/// Local part of the sender where the provider allows a whole domain, and the effect names no sender.
const DEFAULT_USER: &str = "no-reply";

/// Senders that a provider lets send.
#[derive(Debug, Clone)]
pub(super) enum AllowedSender {
    /// Exactly this address.
    Address(Address),
    /// All addresses of a domain, given with the default sender.
    Domain(Address),
}

impl AllowedSender {
    /// Reads an address, or `*@domain`.
    pub(super) fn read(text: &str) -> Option<Self> {
        match text.strip_prefix("*@") {
            Some(domain) => Address::new(DEFAULT_USER, domain).ok().map(Self::Domain),
            None => text.parse().ok().map(Self::Address),
        }
    }

    const fn default(&self) -> &Address {
        match self {
            Self::Address(address) | Self::Domain(address) => address,
        }
    }

    fn allows(&self, address: &Address) -> bool {
        let is_of = |known: &Address| known.domain().eq_ignore_ascii_case(address.domain());
        match self {
            Self::Address(known) => is_of(known) && known.user() == address.user(),
            Self::Domain(known) => is_of(known),
        }
    }
}

/// A mail as it is handed over.
pub(super) struct SmtpMail {
    pub(super) from: Address,
    pub(super) to: Vec<Address>,
    /// `Message-ID` of the mail.
    pub(super) id: String,
    /// Headers and text. Its lines end with CRLF, and no CR or LF stands alone.
    pub(super) content: Vec<u8>,
}

impl SmtpMail {
    /// Renders a mail.
    pub(super) fn render(
        mail: &MailTemplate,
        call: &ProviderCall,
        senders: &[AllowedSender],
        host: &str,
    ) -> Result<Self, RequestBuildError> {
        let command = Json::text(call.command);
        let token = call.callback_token.as_ref().map_or(Json::Null, Json::text);
        let scope = VariableScope::new()
            .with("input", &call.input)
            .with("command_id", &command)
            .with("callback_token", &token);
        let from = sender(mail.from.as_ref(), senders, &scope)?;
        let to = recipients(&mail.to, &scope)?;
        let subject = text("subject", &mail.subject, &scope)?;
        if subject.chars().any(char::is_control) || subject.chars().count() > SUBJECT_CHARS_MAX {
            let why = format!("the subject is one line of at most {SUBJECT_CHARS_MAX} characters");
            return Err(RequestBuildError::Request(why));
        }
        let content = text("text", &mail.text, &scope)?;
        let id = format!("<{}@{}>", call.command, domain_of(host));
        let mut message = Message::builder()
            .from(Mailbox::new(None, from.clone()))
            .subject(subject)
            .message_id(Some(id.clone()))
            .header(ContentType::TEXT_PLAIN);
        for address in &to {
            message = message.to(Mailbox::new(None, address.clone()));
        }
        let message =
            message.body(body(&content)).map_err(|error| RequestBuildError::Request(error.to_string()))?;
        Ok(Self { from, to, id, content: message.formatted() })
    }
}

fn text(
    what: &str,
    template: &ValueTemplate,
    scope: &VariableScope<'_>,
) -> Result<String, RequestBuildError> {
    match template.value(scope).map_err(RequestBuildError::Formula)? {
        Json::Text(text) => Ok(text),
        Json::Int(number) => Ok(number.to_string()),
        other => Err(RequestBuildError::Request(format!("the {what} is a text, not {}", other.kind()))),
    }
}

fn sender(
    from: Option<&ValueTemplate>,
    senders: &[AllowedSender],
    scope: &VariableScope<'_>,
) -> Result<Address, RequestBuildError> {
    let Some(from) = from else {
        let first = senders.first().map(AllowedSender::default).cloned();
        return first.ok_or_else(|| RequestBuildError::Request("the provider has no sender".to_owned()));
    };
    let address = address(&text("sender", from, scope)?)?;
    if !senders.iter().any(|sender| sender.allows(&address)) {
        return Err(RequestBuildError::Request(format!("the provider does not send as {address}")));
    }
    Ok(address)
}

fn recipients(to: &ValueTemplate, scope: &VariableScope<'_>) -> Result<Vec<Address>, RequestBuildError> {
    let addresses = match to.value(scope).map_err(RequestBuildError::Formula)? {
        Json::Text(one) => vec![address(&one)?],
        Json::List(many) if (1..=RECIPIENTS_MAX).contains(&many.len()) => {
            let each = |item: &Json| match item {
                Json::Text(one) => address(one),
                other => Err(RequestBuildError::Request(format!(
                    "a recipient is an address, not {}",
                    other.kind()
                ))),
            };
            many.iter().map(each).collect::<Result<_, _>>()?
        }
        Json::List(many) => {
            let why = format!("a mail has 1 to {RECIPIENTS_MAX} recipients, not {}", many.len());
            return Err(RequestBuildError::Request(why));
        }
        other => {
            let why = format!("`to` is an address or a list of them, not {}", other.kind());
            return Err(RequestBuildError::Request(why));
        }
    };
    Ok(addresses)
}

/// Reads an address, without a name beside it.
fn address(text: &str) -> Result<Address, RequestBuildError> {
    let is_line = !text.chars().any(char::is_control);
    let address = is_line.then(|| text.parse().ok()).flatten();
    address.ok_or_else(|| {
        RequestBuildError::Request(format!("{:?} is no address", text.chars().take(80).collect::<String>()))
    })
}

/// Encodes a text. Its lines end with CRLF: to some servers a CR or an LF alone ends one too, and a dot behind it the mail. Other control
/// characters are encoded.
fn body(text: &str) -> Body {
    let text = text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n");
    let is_strange = |c: char| c.is_control() && !matches!(c, '\r' | '\n' | '\t');
    if text.contains(is_strange) {
        let encoding = ContentTransferEncoding::Base64;
        return Body::new_with_encoding(text, encoding)
            .unwrap_or_else(|raw| Body::new(String::from_utf8_lossy(&raw).into_owned()));
    }
    Body::new(text)
}

/// A host as the domain of an id.
fn domain_of(host: &str) -> String {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => format!("[{address}]"),
        Ok(IpAddr::V6(address)) => format!("[IPv6:{address}]"),
        Err(_) => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_are_addresses_or_domains() {
        let allows = |sender: &str, address: &str| {
            AllowedSender::read(sender).expect(sender).allows(&address.parse().expect(address))
        };
        assert!(allows("*@shop.test", "any.body@SHOP.test"));
        assert!(allows("shop@shop.test", "shop@Shop.Test"));
        for (sender, address) in [
            ("*@shop.test", "a@sub.shop.test"),
            ("*@shop.test", "a@notshop.test"),
            ("*@shop.test", "\"a@shop.test\"@evil.test"),
            ("shop@shop.test", "Shop@shop.test"),
            ("shop@shop.test", "shop@shop.test.evil.test"),
        ] {
            assert!(!allows(sender, address), "{sender} {address}");
        }
        for text in ["", "*", "*@", "shop", "Shop <shop@shop.test>", "a@b\r\nX: y", "*@b c"] {
            assert!(AllowedSender::read(text).is_none(), "{text}");
        }
    }

    #[test]
    fn lines_of_a_body_end_with_both_characters() {
        for text in ["a\rb\n.\nc\r\n.\r\n", "a\0b\r\r\n.\n", "\n.\n", "ü\r.\r\u{85}"] {
            let body = body(text);
            let bytes = body.as_ref();
            for (at, byte) in bytes.iter().enumerate() {
                let (before, after) = (at.checked_sub(1).map(|at| bytes[at]), bytes.get(at + 1));
                assert!(*byte != b'\n' || before == Some(b'\r'), "{text:?}");
                assert!(*byte != b'\r' || after == Some(&b'\n'), "{text:?}");
                assert!(
                    byte.is_ascii() && (*byte >= b' ' || matches!(byte, b'\r' | b'\n' | b'\t')),
                    "{text:?}"
                );
            }
        }
    }

    #[test]
    fn ids_have_a_domain() {
        for (host, domain) in [
            ("smtp.test", "smtp.test"),
            ("127.0.0.1", "[127.0.0.1]"),
            ("[::1]", "[IPv6:::1]"),
            ("::1", "[IPv6:::1]"),
        ] {
            assert_eq!(domain_of(host), domain);
        }
    }
}
