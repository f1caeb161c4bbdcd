//! The surroundings of calls: an authority, a directory of secrets, and providers as manifests say them.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use egress::{HostResolver, TrustAnchors};
use model::{CommandId, TenantId};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use saga::providers::http::HttpProvider;
use saga::providers::smtp::SmtpProvider;
use saga::providers::{ProviderCall, SentFlag};
use saga::secrets::Secrets;
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use workflow::Json;
use workflow::ledger::ProviderAnswer;
use workflow::manifest::{self, ManifestDefinition};
use workflow::provider::{EffectProvider, ProviderTransport};

/// A value that nothing may show.
pub(crate) const CANARY: &str = "canary-5f0c1d";
/// The command of every call.
pub(crate) const COMMAND: &str = "018f4d2e-7a1b-7c3d-8e4f-0123456789ab";

pub(crate) struct Stage {
    authority: CertifiedIssuer<'static, KeyPair>,
    secrets: TempDir,
}

impl Stage {
    /// A stage whose secrets are `ca`, the authority of its servers, and `token`, the canary.
    pub(crate) fn new() -> Self {
        let secrets = tempfile::tempdir().expect("a temporary directory");
        let stage = Self { authority: authority(), secrets };
        stage.keep("ca", &stage.authority.pem());
        stage.keep("other-ca", &authority().pem());
        stage.keep("token", CANARY);
        stage
    }

    pub(crate) fn directory(&self) -> &Path {
        self.secrets.path()
    }

    /// Keeps a secret, at `name` or `tenant/name`.
    pub(crate) fn keep(&self, place: &str, value: &str) {
        let path = self.directory().join(place);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(&path, format!("{value}\n")).expect("written");
        self.set_mode(place, 0o600);
    }

    pub(crate) fn set_mode(&self, place: &str, mode: u32) {
        let path = self.directory().join(place);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    /// The TLS of a server of this name, which clients of this stage believe.
    pub(crate) fn acceptor(&self, name: &str) -> TlsAcceptor {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.authority).expect("a certificate").pem();
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("PEM");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("a certificate with its key");
        TlsAcceptor::from(Arc::new(config))
    }

    fn secrets(&self) -> Arc<Secrets> {
        Arc::new(Secrets::in_directory(self.directory()))
    }

    pub(crate) fn http(&self, definition: &EffectProvider) -> HttpProvider {
        let ProviderTransport::Http(transport) = &definition.transport else { panic!("it is not HTTP") };
        HttpProvider::new(transport, self.secrets(), TrustAnchors::from_system()).expect("a provider")
    }

    pub(crate) fn smtp(&self, definition: &EffectProvider) -> SmtpProvider {
        let ProviderTransport::Smtp(transport) = &definition.transport else { panic!("it is not SMTP") };
        SmtpProvider::new(transport, self.secrets(), TrustAnchors::from_system()).expect("a provider")
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// A resolver that knows these names only, with their addresses in one text each, parted by blanks.
#[derive(Debug, Clone)]
pub(crate) struct Names(BTreeMap<String, String>);

impl<const N: usize> From<[(&str, &str); N]> for Names {
    fn from(names: [(&str, &str); N]) -> Self {
        Self(names.map(|(name, addresses)| (name.to_owned(), addresses.to_owned())).into())
    }
}

#[async_trait]
impl HostResolver for Names {
    async fn resolve(&self, host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
        let addresses = self.0.get(host).ok_or_else(|| std::io::Error::other("nobody knows it"))?;
        let address = |text: &str| SocketAddr::new(text.parse().expect("an address"), port);
        Ok(addresses.split_whitespace().map(address).collect())
    }
}

/// Reads the only document of a manifest.
pub(crate) fn provider(text: &str) -> Arc<EffectProvider> {
    let text = format!("kind: EffectProvider\nname: it\n{text}");
    let documents = manifest::read("it.yaml", &text).unwrap_or_else(|problems| panic!("{text}\n{problems}"));
    match documents.into_iter().next().map(|document| document.definition) {
        Some(ManifestDefinition::Provider(provider)) => provider,
        _ => panic!("it is no provider"),
    }
}

pub(crate) fn json(text: &str) -> Json {
    workflow::json::read(text.as_bytes(), 1 << 21).expect(text)
}

/// A call of the first effect.
pub(crate) fn call(definition: &EffectProvider, input: &str) -> ProviderCall {
    ProviderCall {
        tenant: "acme".parse().expect("a tenant"),
        command: COMMAND.parse::<CommandId>().expect("an id"),
        effect: Arc::clone(definition.effects.first().expect("an effect")),
        input: Arc::new(json(input)),
        traceparent: None,
        callback_token: None,
        sent: SentFlag::default(),
    }
}

pub(crate) fn tenant(name: &str) -> TenantId {
    name.parse().expect("a tenant")
}

/// The code and the payload of a failure.
pub(crate) fn failure(answer: &ProviderAnswer) -> (&str, String) {
    match answer {
        ProviderAnswer::Failed { code, payload } => (code, payload.to_string()),
        other => panic!("it is no failure: {other:?}"),
    }
}

/// Why an answer passes.
pub(crate) fn passing(answer: &ProviderAnswer) -> &str {
    match answer {
        ProviderAnswer::Passing { why, .. } => why,
        other => panic!("it does not pass: {other:?}"),
    }
}

/// Why the outcome is not known.
pub(crate) fn unknown(answer: &ProviderAnswer) -> &str {
    match answer {
        ProviderAnswer::Unknown { why } => why,
        other => panic!("it is known: {other:?}"),
    }
}
