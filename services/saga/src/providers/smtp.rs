//! Mail by SMTP: one mail for each call, whose `Message-ID` is the id of the command.
//!
//! A server may have taken a mail once it was told that the mail is over. Until then nothing has happened; from then on only its
//! answer says whether it has.

mod dialog;
mod mail;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use egress::{ConnectError, Hosts, Resolve, Trust, connect};
use lettre::Address;
use service::error_chain;
use workflow::Json;
use workflow::ledger::Answer;
use workflow::provider::{Call as CallKind, SecretName, SmtpAuth, SmtpTls, SmtpTransport};

use self::dialog::{Dialog, Stream, Trouble};
use self::mail::{Outgoing, Sender};
use super::http::{BadTransport, denied_by, failed};
use super::{Call, Provider};
use crate::secrets::{SecretError, Secrets};

/// Recipients of one mail.
pub const RECIPIENTS_MAX: usize = 50;

/// Provider of mail.
pub struct SmtpProvider {
    host: String,
    port: u16,
    tls: SmtpTls,
    senders: Vec<Sender>,
    auth: Option<SmtpAuth>,
    ca: Option<SecretName>,
    hosts: Hosts,
    trust: Trust,
    secrets: Arc<Secrets>,
}

impl fmt::Debug for SmtpProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmtpProvider")
            .field("host", &self.host)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl SmtpProvider {
    /// Makes the provider. `trust` is for transports that name no authority of their own.
    ///
    /// # Errors
    /// The transport names no sender, or one that is neither an address nor `*@domain`.
    pub fn new(transport: &SmtpTransport, secrets: Arc<Secrets>, trust: Trust) -> Result<Self, BadTransport> {
        let senders = transport.from.iter().map(|text| {
            let sender = Sender::read(text);
            sender.ok_or_else(|| BadTransport(format!("`{text}` is neither an address nor `*@domain`")))
        });
        let senders: Vec<_> = senders.collect::<Result<_, _>>()?;
        if senders.is_empty() {
            return Err(BadTransport("there is nobody that mail may come from".to_owned()));
        }
        Ok(Self {
            host: transport.host.clone(),
            port: transport.port,
            tls: transport.tls,
            senders,
            auth: transport.auth.clone(),
            ca: transport.ca.clone(),
            hosts: Hosts::exact(std::slice::from_ref(&transport.host), transport.port, transport.is_private),
            trust,
            secrets,
        })
    }

    /// Has another resolver than the system's say where names lead.
    #[must_use]
    pub fn resolved_by(self, resolver: Arc<dyn Resolve>) -> Self {
        Self { hosts: self.hosts.resolved_by(resolver), ..self }
    }

    async fn send(&self, call: &Call, mail: &Outgoing) -> Result<Answer, Answer> {
        let mut dialog = self.open(call, &mail.from).await?;
        dialog.envelope(mail).await.map_err(before_the_end)?;
        dialog.content(&mail.content).await.map_err(before_the_end)?;
        match dialog.end_of_mail(&call.sent).await {
            Ok(()) => {
                dialog.leave().await;
                Ok(Answer::Succeeded(Json::object([("message_id", Json::text(&mail.id))])))
            }
            Err(Trouble::Broken(why)) => Err(Answer::Unknown {
                why: format!("the mail was sent, and the server did not answer: {why}"),
            }),
            Err(trouble) => Err(before_the_end(trouble)),
        }
    }

    /// Opens a dialog, up to where the server takes mail.
    async fn open(&self, call: &Call, sender: &Address) -> Result<Dialog, Answer> {
        let trust = match &self.ca {
            None => self.trust.clone(),
            Some(name) => self.private_trust(call, name)?,
        };
        let stream = connect(&self.hosts, &self.host, self.port).await.map_err(|error| match error {
            ConnectError::Denied(denied) => denied_by(&denied),
            ConnectError::Failed(why) => passing(why),
        })?;
        let mut dialog = match self.tls {
            SmtpTls::Implicit => self.encrypted(&trust, stream).await?,
            SmtpTls::None | SmtpTls::Required => Dialog::new(stream),
        };
        dialog.greeting().await.map_err(before_mail)?;
        dialog.hello(sender.domain()).await.map_err(before_mail)?;
        if self.tls == SmtpTls::Required {
            let plain = dialog.start_tls().await.map_err(before_mail)?;
            dialog = self.encrypted(&trust, plain).await?;
            dialog.hello(sender.domain()).await.map_err(before_mail)?;
        }
        if let Some(auth) = &self.auth {
            let password = self.secrets.read(&call.tenant, &auth.password).map_err(no_secret)?;
            dialog.log_in(&auth.user, &password).await.map_err(before_mail)?;
        }
        Ok(dialog)
    }

    async fn encrypted(&self, trust: &Trust, stream: impl Stream + 'static) -> Result<Dialog, Answer> {
        let stream = trust.encrypt(&self.host, stream).await;
        stream.map(Dialog::new).map_err(|why| passing(format!("{}: {why}", self.host)))
    }

    fn private_trust(&self, call: &Call, name: &SecretName) -> Result<Trust, Answer> {
        let pem = self.secrets.read(&call.tenant, name).map_err(no_secret)?;
        Trust::of_pem(pem.expose()).map_err(|why| passing(format!("the authorities of `{name}`: {why}")))
    }
}

const fn passing(why: String) -> Answer {
    Answer::Passing { why, after: None }
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` gives it away")]
fn no_secret(error: SecretError) -> Answer {
    passing(error_chain(&error))
}

/// Answers a call whose server does not let us begin. That is about the server and us: no mail was spoken of.
#[expect(clippy::needless_pass_by_value, reason = "`map_err` gives it away")]
fn before_mail(trouble: Trouble) -> Answer {
    passing(trouble.to_string())
}

/// Answers a call whose mail the server has not taken.
fn before_the_end(trouble: Trouble) -> Answer {
    match trouble {
        Trouble::Refused { code, .. } if (500..600).contains(&code) => {
            failed(&format!("smtp_{code}"), &trouble.to_string())
        }
        Trouble::Unfit(why) => failed("request", why),
        other => passing(other.to_string()),
    }
}

#[async_trait]
impl Provider for SmtpProvider {
    async fn call(&self, call: &Call) -> Answer {
        let CallKind::Mail(mail) = &call.effect.call else {
            return failed("request", "the effect is not a mail");
        };
        match Outgoing::render(mail, call, &self.senders, &self.host) {
            Ok(mail) => self.send(call, &mail).await.unwrap_or_else(|answer| answer),
            Err(unmade) => unmade.into(),
        }
    }

    /// Servers cannot be asked about a mail.
    async fn ask(&self, _: &Call) -> Option<Answer> {
        None
    }

    /// A mail has no life beyond its delivery.
    async fn stop(&self, _: &Call, _: &str) {}
}
