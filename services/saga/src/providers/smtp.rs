//! Mail by SMTP: one mail for each call, whose `Message-ID` is the id of the command.
//!
//! A server may have taken a mail once the end of its content was sent. Until then nothing has happened; from then on only the
//! server's answer shows whether it has.

mod dialog;
mod mail;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use egress::{ConnectError, HostAllowlist, HostResolver, TrustAnchors, connect};
use lettre::Address;
use service::error_chain;
use workflow::Json;
use workflow::ledger::ProviderAnswer;
use workflow::provider::{EffectAction as CallKind, SecretName, SmtpAuth, SmtpTls, SmtpTransport};

use self::dialog::{SmtpDialog, SmtpError, SmtpStream};
use self::mail::{AllowedSender, SmtpMail};
use super::http::{BadTransport, denied_by, failed};
use super::{CallProvider, ProviderCall};
use crate::secrets::{SecretError, Secrets};

/// Recipients of one mail.
pub const RECIPIENTS_MAX: usize = 50;

/// Provider of mail.
pub struct SmtpProvider {
    host: String,
    port: u16,
    tls: SmtpTls,
    senders: Vec<AllowedSender>,
    auth: Option<SmtpAuth>,
    ca: Option<SecretName>,
    hosts: HostAllowlist,
    trust: TrustAnchors,
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
    pub fn new(
        transport: &SmtpTransport,
        secrets: Arc<Secrets>,
        trust: TrustAnchors,
    ) -> Result<Self, BadTransport> {
        let senders = transport.from.iter().map(|text| {
            let sender = AllowedSender::read(text);
            sender.ok_or_else(|| BadTransport(format!("`{text}` is neither an address nor `*@domain`")))
        });
        let senders: Vec<_> = senders.collect::<Result<_, _>>()?;
        if senders.is_empty() {
            return Err(BadTransport("`from` names no sender: give addresses or `*@domain`".to_owned()));
        }
        Ok(Self {
            host: transport.host.clone(),
            port: transport.port,
            tls: transport.tls,
            senders,
            auth: transport.auth.clone(),
            ca: transport.ca.clone(),
            hosts: HostAllowlist::exact(
                std::slice::from_ref(&transport.host),
                transport.port,
                transport.is_private,
            ),
            trust,
            secrets,
        })
    }

    /// Resolves host names with this resolver instead of the system's.
    #[must_use]
    pub fn resolved_by(self, resolver: Arc<dyn HostResolver>) -> Self {
        Self { hosts: self.hosts.with_resolver(resolver), ..self }
    }

    async fn send(&self, call: &ProviderCall, mail: &SmtpMail) -> Result<ProviderAnswer, ProviderAnswer> {
        let mut dialog = self.open(call, &mail.from).await?;
        dialog.envelope(mail).await.map_err(before_the_end)?;
        dialog.content(&mail.content).await.map_err(before_the_end)?;
        match dialog.end_of_mail(&call.sent).await {
            Ok(()) => {
                dialog.leave().await;
                Ok(ProviderAnswer::Succeeded(Json::object([("message_id", Json::text(&mail.id))])))
            }
            Err(SmtpError::Broken(why)) => Err(ProviderAnswer::Unknown {
                why: format!("the mail was sent, and the server did not answer: {why}"),
            }),
            Err(trouble) => Err(before_the_end(trouble)),
        }
    }

    /// Opens a dialog, up to the point where the server takes mail.
    async fn open(&self, call: &ProviderCall, sender: &Address) -> Result<SmtpDialog, ProviderAnswer> {
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
            SmtpTls::None | SmtpTls::Required => SmtpDialog::new(stream),
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

    async fn encrypted(
        &self,
        trust: &TrustAnchors,
        stream: impl SmtpStream + 'static,
    ) -> Result<SmtpDialog, ProviderAnswer> {
        let stream = trust.encrypt(&self.host, stream).await;
        stream.map(SmtpDialog::new).map_err(|why| passing(format!("{}: {why}", self.host)))
    }

    fn private_trust(&self, call: &ProviderCall, name: &SecretName) -> Result<TrustAnchors, ProviderAnswer> {
        let pem = self.secrets.read(&call.tenant, name).map_err(no_secret)?;
        TrustAnchors::from_pem(pem.expose())
            .map_err(|why| passing(format!("the authorities of `{name}`: {why}")))
    }
}

const fn passing(why: String) -> ProviderAnswer {
    ProviderAnswer::Passing { why, after: None }
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` gives it away")]
fn no_secret(error: SecretError) -> ProviderAnswer {
    passing(error_chain(&error))
}

/// Answers a call whose server refuses the session. That concerns the server and us: no mail was mentioned yet.
#[expect(clippy::needless_pass_by_value, reason = "`map_err` gives it away")]
fn before_mail(trouble: SmtpError) -> ProviderAnswer {
    passing(trouble.to_string())
}

/// Answers a call whose mail the server has not taken.
fn before_the_end(trouble: SmtpError) -> ProviderAnswer {
    match trouble {
        SmtpError::Refused { code, .. } if (500..600).contains(&code) => {
            failed(&format!("smtp_{code}"), &trouble.to_string())
        }
        SmtpError::Unfit(why) => failed("request", why),
        other => passing(other.to_string()),
    }
}

#[async_trait]
impl CallProvider for SmtpProvider {
    async fn call(&self, call: &ProviderCall) -> ProviderAnswer {
        let CallKind::Mail(mail) = &call.effect.call else {
            return failed("request", "the effect is not a mail");
        };
        match SmtpMail::render(mail, call, &self.senders, &self.host) {
            Ok(mail) => self.send(call, &mail).await.unwrap_or_else(|answer| answer),
            Err(unmade) => unmade.into(),
        }
    }

    /// Servers cannot be asked about a mail.
    async fn ask(&self, _: &ProviderCall) -> Option<ProviderAnswer> {
        None
    }

    /// A mail has no life beyond its delivery.
    async fn stop(&self, _: &ProviderCall, _: &str) {}
}
