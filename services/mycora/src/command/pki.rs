//! `mycora pki`: the development certificate authority.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use envelope::{NewRoot, SigningFiles};
use identity::pki::CA_CERTIFICATE_FILE;
use identity::{CertificateSummary, Identity, IssueOptions, Pki, ServiceName, TrustDomain};
use model::Timestamp;
use serde::Serialize;

use crate::failure::{CliError, error_chain};
use crate::output::{self, OutputFormat, table, time};
use crate::profile::default_data_dir;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Commands about certificates.
#[derive(Debug, Subcommand)]
pub enum PkiCommand {
    /// Create a certificate authority, and the certificate of the bootstrap identity
    #[command(after_help = "Example:\n  mycora pki init --dir pki")]
    Init(PkiInitArgs),
    /// Issue a certificate and its key; for a gateway also its signing key
    #[command(
        after_help = "Examples:\n  mycora pki issue actor/2\n  mycora pki issue service/storage --name storage.example --days 30"
    )]
    Issue(PkiIssueArgs),
    /// Create a new root key of the coordinator, signed by the old one
    #[command(after_help = CHANGE_ROOT_HELP)]
    ChangeRoot(PkiChangeRootArgs),
    /// Show the coordinator's root key: what the `--coordinator` of a supervisor names
    #[command(
        after_help = "The root is made with the gateway's certificate, by `mycora pki issue service/mycelium-gateway`.\n\n\
                            Example:\n  mycora-supervisor --coordinator $(mycora pki root --dir pki)"
    )]
    Root(PkiRootArgs),
    /// Show the content of certificates
    #[command(after_help = "Example:\n  mycora pki show pki/actor-1.pem")]
    Show(PkiShowArgs),
}

const CHANGE_ROOT_HELP: &str = "\
Writes the new root key to coordinator.key and the change, signed by both keys, to coordinator.changes, and reissues the gateway's certificate. Put key, certificate and coordinator.changes where the gateways read them: a running gateway picks them up and announces the change to supervisors. If a supervisor's policy names the old root, add the new one there first. The old key is kept beside the new one; it is no longer needed once every supervisor has followed. If the old key is lost, use `mycora supervisor succeed` instead.

Example:
  mycora pki change-root --dir pki";

/// Arguments of `pki change-root`.
#[derive(Debug, Args)]
pub struct PkiChangeRootArgs {
    /// Where the root is.
    #[command(flatten)]
    pub dir: PkiDirFlags,
    /// How long the gateway's certificate lasts
    #[arg(long, default_value_t = 90, value_name = "DAYS", value_parser = clap::value_parser!(u16).range(1..))]
    pub days: u16,
}

/// Arguments of `pki root`.
#[derive(Debug, Args)]
pub struct PkiRootArgs {
    /// Where the root is.
    #[command(flatten)]
    pub dir: PkiDirFlags,
}

/// Where the authority is.
#[derive(Debug, Args)]
pub struct PkiDirFlags {
    /// The authority's directory [default: pki in the data directory]
    #[arg(long, value_name = "DIR", env = "MYCORA_PKI")]
    pub dir: Option<PathBuf>,
}

/// Arguments of `pki init`.
#[derive(Debug, Args)]
pub struct PkiInitArgs {
    /// Where to make it.
    #[command(flatten)]
    pub dir: PkiDirFlags,
    /// The trust domain of the authority
    #[arg(long, default_value = TrustDomain::DEFAULT, value_name = "NAME")]
    pub trust_domain: TrustDomain,
}

/// Arguments of `pki issue`.
#[derive(Debug, Args)]
pub struct PkiIssueArgs {
    /// The holder of the certificate: actor/ID, service/NAME or admin
    pub identity: Identity,
    /// Which authority signs.
    #[command(flatten)]
    pub dir: PkiDirFlags,
    /// A further host name or IP address at which it serves; may be given several times [default: those of the certificate that is
    /// replaced]
    #[arg(long = "name", value_name = "HOST")]
    pub names: Vec<String>,
    /// How long it lasts
    #[arg(long, default_value_t = 90, value_name = "DAYS", value_parser = clap::value_parser!(u16).range(1..))]
    pub days: u16,
}

/// Arguments of `pki show`.
#[derive(Debug, Args)]
pub struct PkiShowArgs {
    /// PEM files [default: all of the authority's directory]
    pub files: Vec<PathBuf>,
    /// Where to look without files.
    #[command(flatten)]
    pub dir: PkiDirFlags,
}

impl PkiDirFlags {
    fn path(&self) -> Result<PathBuf, CliError> {
        match &self.dir {
            Some(dir) => Ok(dir.clone()),
            None => Ok(default_data_dir()?.join("pki")),
        }
    }
}

/// Paths of what was issued.
#[derive(Serialize)]
struct IssuedDocument {
    identity: String,
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    /// Key file with which the coordinator signs messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    signing_key: Option<PathBuf>,
    /// The coordinator's certificate for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    signing_certificate: Option<PathBuf>,
}

/// Result of a change of root.
#[derive(Serialize)]
struct RootDocument {
    old_root: String,
    /// Where the old root is kept.
    old_key: PathBuf,
    root: String,
    key: PathBuf,
    changes: PathBuf,
    signing_key: PathBuf,
    signing_certificate: PathBuf,
}

/// A certificate as `--output json` shows it.
#[derive(Serialize)]
struct CertificateDocument {
    file: PathBuf,
    subject: String,
    issuer: String,
    is_ca: bool,
    identity: Option<String>,
    uris: Vec<String>,
    dns_names: Vec<String>,
    ip_addresses: Vec<String>,
    not_before: String,
    not_after: String,
    sha256: String,
}

/// Runs the command; needs no coordinator.
///
/// # Errors
/// When there is no authority, there is one already, or files cannot be read or written.
pub fn run(command: &PkiCommand, format: OutputFormat) -> Result<(), CliError> {
    match command {
        PkiCommand::Init(args) => init(args, format),
        PkiCommand::Issue(args) => issue(args, format),
        PkiCommand::ChangeRoot(args) => change_root(args, format),
        PkiCommand::Root(args) => root(args, format),
        PkiCommand::Show(args) => show(args, format),
    }
}

fn init(args: &PkiInitArgs, format: OutputFormat) -> Result<(), CliError> {
    let now = SystemTime::now();
    let pki = Pki::init(&args.dir.path()?, &args.trust_domain, now).map_err(|e| failed(&e))?;
    let files = pki.issue(Identity::Admin, &IssueOptions::from(now)).map_err(|e| failed(&e))?;
    print_issued(Identity::Admin, &files, None, format)
}

fn issue(args: &PkiIssueArgs, format: OutputFormat) -> Result<(), CliError> {
    let dir = args.dir.path()?;
    let pki = Pki::open(&dir).map_err(|e| failed(&e))?;
    let now = SystemTime::now();
    let validity = DAY * u32::from(args.days);
    // Without its names clients elsewhere would refuse a service whose certificate was renewed.
    let names = if args.names.is_empty() { names_before(&pki, args.identity) } else { args.names.clone() };
    let options = IssueOptions { names, validity, ..IssueOptions::from(now) };
    let files = pki.issue(args.identity, &options).map_err(|e| failed(&e))?;
    let signing = match args.identity {
        Identity::Service(ServiceName::MyceliumGateway) => {
            let since = Timestamp::from(now);
            let name = ServiceName::MyceliumGateway.as_str();
            Some(SigningFiles::issue(&dir, name, since, since + validity).map_err(|e| failed(&e))?)
        }
        _ => None,
    };
    print_issued(args.identity, &files, signing, format)
}

/// Names of the present certificate of an identity; none when it has none.
fn names_before(pki: &Pki, identity: Identity) -> Vec<String> {
    let Ok(summary) = CertificateSummary::from_pem_file(&pki.files(identity).certificate) else {
        return Vec::new();
    };
    summary.dns_names.into_iter().chain(summary.ip_addresses.iter().map(ToString::to_string)).collect()
}

fn change_root(args: &PkiChangeRootArgs, format: OutputFormat) -> Result<(), CliError> {
    let dir = args.dir.path()?;
    let changed = NewRoot::make(&dir).map_err(|e| failed(&e))?;
    let since = Timestamp::now();
    let name = ServiceName::MyceliumGateway.as_str();
    let signing = SigningFiles::issue(&dir, name, since, since + DAY * u32::from(args.days));
    let SigningFiles { key, certificate } = signing.map_err(|e| failed(&e))?;
    let document = RootDocument {
        old_root: changed.old.to_string(),
        old_key: changed.old_key,
        root: changed.new.to_string(),
        key: changed.new_key,
        changes: changed.changes,
        signing_key: key,
        signing_certificate: certificate,
    };
    let text = || {
        let shown = |path: &Path| path.display().to_string();
        table::pairs(&[
            ("root", document.root.clone()),
            ("key", shown(&document.key)),
            ("comes after", document.old_root.clone()),
            ("kept in", shown(&document.old_key)),
            ("told by", shown(&document.changes)),
            ("signs with", shown(&document.signing_key)),
            ("vouched for by", shown(&document.signing_certificate)),
        ])
    };
    output::answer(format, || &document, text)
}

fn root(args: &PkiRootArgs, format: OutputFormat) -> Result<(), CliError> {
    let root = envelope::read_root_key(&args.dir.path()?).map_err(|e| failed(&e))?.to_string();
    let document = serde_json::json!({ "root": root });
    output::answer(format, || &document, || format!("{root}\n"))
}

fn print_issued(
    identity: Identity,
    files: &identity::IssuedFiles,
    signing: Option<SigningFiles>,
    format: OutputFormat,
) -> Result<(), CliError> {
    let (signing_key, signing_certificate) =
        signing.map(|SigningFiles { key, certificate }| (key, certificate)).unzip();
    let document = IssuedDocument {
        identity: identity.to_string(),
        ca: files.ca.clone(),
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        signing_key,
        signing_certificate,
    };
    let text = || {
        let shown = |path: &Path| path.display().to_string();
        let mut pairs = vec![
            ("identity", document.identity.clone()),
            ("authority", shown(&document.ca)),
            ("certificate", shown(&document.certificate)),
            ("key", shown(&document.key)),
        ];
        pairs.extend(document.signing_key.iter().map(|key| ("signs with", shown(key))));
        pairs.extend(document.signing_certificate.iter().map(|path| ("vouched for by", shown(path))));
        table::pairs(&pairs)
    };
    output::answer(format, || &document, text)
}

fn show(args: &PkiShowArgs, format: OutputFormat) -> Result<(), CliError> {
    let files = if args.files.is_empty() { certificates_in(&args.dir.path()?)? } else { args.files.clone() };
    let mut documents = Vec::with_capacity(files.len());
    for file in files {
        let summary = CertificateSummary::from_pem_file(&file).map_err(|e| failed(&e))?;
        documents.push(document(file, summary));
    }
    output::answer(format, || &documents, || certificates(&documents))
}

fn certificates(documents: &[CertificateDocument]) -> String {
    let rows: Vec<_> = documents
        .iter()
        .map(|certificate| {
            let names = [certificate.dns_names.as_slice(), &certificate.ip_addresses].concat();
            vec![
                certificate.file.display().to_string(),
                certificate.identity.clone().unwrap_or_else(|| certificate.subject.clone()),
                if certificate.is_ca { "authority".to_owned() } else { names.join(" ") },
                certificate.not_after.clone(),
            ]
        })
        .collect();
    table::render(&["FILE", "IDENTITY", "NAMES", "UNTIL"], &rows)
}

fn certificates_in(dir: &Path) -> Result<Vec<PathBuf>, CliError> {
    let refused =
        |error: std::io::Error| CliError::Invalid(format!("cannot read {}: {error}", dir.display()));
    if !dir.join(CA_CERTIFICATE_FILE).exists() {
        let dir = dir.display();
        return Err(CliError::Invalid(format!(
            "there is no certificate authority in {dir}; `mycora pki init` makes one, --dir names another"
        )));
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(refused)? {
        let path = entry.map_err(refused)?.path();
        if path.extension().is_some_and(|extension| extension == "pem") {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn document(file: PathBuf, summary: CertificateSummary) -> CertificateDocument {
    CertificateDocument {
        file,
        subject: summary.subject,
        issuer: summary.issuer,
        is_ca: summary.is_ca,
        identity: summary.identity.map(|id| id.to_string()),
        uris: summary.uris,
        dns_names: summary.dns_names,
        ip_addresses: summary.ip_addresses.iter().map(ToString::to_string).collect(),
        not_before: time::utc(summary.not_before),
        not_after: time::utc(summary.not_after),
        sha256: summary.fingerprint,
    }
}

/// Maps an error to invalid input: only the arguments, or the files they name, can be wrong here.
fn failed(error: &dyn std::error::Error) -> CliError {
    CliError::Invalid(error_chain(error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_certificate_that_is_issued_again_keeps_its_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let pki = Pki::init(dir.path(), &TrustDomain::default(), SystemTime::now()).expect("an authority");
        let identity = Identity::Service(ServiceName::Supervisor);
        let args = |names: &[&str]| PkiIssueArgs {
            identity,
            dir: PkiDirFlags { dir: Some(dir.path().to_owned()) },
            names: names.iter().map(|&name| name.to_owned()).collect(),
            days: 90,
        };
        assert_eq!(names_before(&pki, identity), [""; 0]);
        let usual = ["supervisor", "localhost", "127.0.0.1", "::1"];
        for (given, wanted) in [
            (&["node7.example", "10.0.0.7"][..], &["node7.example", "10.0.0.7"][..]),
            (&[], &["node7.example", "10.0.0.7"]),
            (&["node8.example"], &["node8.example"]),
        ] {
            issue(&args(given), OutputFormat::Json).expect("issued");
            let names: BTreeSet<_> = names_before(&pki, identity).into_iter().collect();
            let wanted: BTreeSet<_> = usual.iter().chain(wanted).map(|&name| name.to_owned()).collect();
            assert_eq!(names, wanted, "{given:?}");
        }
    }
}
