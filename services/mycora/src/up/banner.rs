//! Message that `mycora up` prints once it serves: lines to copy, or the same for programs.

use std::fmt::Write as _;
use std::path::PathBuf;

use identity::IssuedFiles;
use model::Isolation;
use sandbox::IsolationSupport;
use serde::Serialize;

use super::directory::DataDir;
use super::disk::SharedDisk;
use super::redis_backend::RedisBackend;
use crate::profile::Profile;

/// Information needed to use an all-in-one.
#[derive(Debug, Clone, Serialize)]
pub struct Banner {
    /// Where clients reach it.
    pub address: String,
    /// Where everything is kept.
    pub data: PathBuf,
    /// Isolation of scripts from everything else; nothing where no script runs here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Layers of it that do not stand here, each with the reason and what a script may do then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Warning that jobs with the network do not reach the name servers of this machine, where it is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_servers: Option<String>,
    /// Warning that scripts can fill the disk of Redis, and the way out; nothing where they cannot.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disk: Vec<String>,
    /// The client profile.
    pub config: PathBuf,
    /// The certificate authority.
    pub ca: PathBuf,
    /// The first actor's certificate.
    pub cert: PathBuf,
    /// Key of that certificate.
    pub key: PathBuf,
    /// The certificate of who may do what actors may not, such as registering them.
    pub admin_cert: PathBuf,
    /// Key of that certificate.
    pub admin_key: PathBuf,
    /// A command that looks into Redis.
    pub redis_cli: String,
    /// A command that lists sagas, where they are run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sagas: Option<String>,
    /// A command that looks into its private NATS server, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats_cli: Option<String>,
    /// Log file, if standard error is not visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<PathBuf>,
    #[serde(skip)]
    port: u16,
}

impl Banner {
    pub(super) fn new(
        dir: &DataDir,
        redis: &RedisBackend,
        profile: &Profile,
        admin: &IssuedFiles,
        port: u16,
        isolation_support: Option<&IsolationSupport>,
    ) -> Self {
        Self {
            address: profile.address.clone().unwrap_or_default(),
            data: dir.path().to_owned(),
            isolation: isolation_support.map(|isolation_support| isolation_support.level),
            missing: isolation_support.map(IsolationSupport::gaps).unwrap_or_default(),
            name_servers: isolation_support.and_then(IsolationSupport::unreached_name_servers),
            disk: Vec::new(),
            config: dir.join("client.toml"),
            ca: profile.ca.clone().unwrap_or_default(),
            cert: profile.cert.clone().unwrap_or_default(),
            key: profile.key.clone().unwrap_or_default(),
            admin_cert: admin.certificate.clone(),
            admin_key: admin.key.clone(),
            redis_cli: redis.cli_line(dir, 1),
            sagas: None,
            nats_cli: None,
            log: None,
            port,
        }
    }

    /// Warns that scripts and Redis share a disk, when they do.
    pub(super) fn with_disk(mut self, shared: Option<&SharedDisk>) -> Self {
        self.disk = shared.iter().flat_map(|shared| [shared.to_string(), shared.way_out()]).collect();
        self
    }

    /// Shows how to look at sagas, and into the private NATS server if there is one.
    pub(super) fn with_sagas(self, tenant: &str, nats_cli: Option<String>) -> Self {
        Self { sagas: Some(format!("mycora saga list --tenant {tenant}")), nats_cli, ..self }
    }

    /// Shows where it logs, and how to stop it when it has no terminal.
    #[must_use]
    pub fn with_log(self, log: PathBuf) -> Self {
        Self { log: Some(log), ..self }
    }

    /// Returns the line that shows that the all-in-one serves, and where.
    #[must_use]
    pub fn line(&self) -> String {
        format!("mycora is ready on {}, data in {}\n", self.address, self.data.display())
    }

    fn isolation_text(&self) -> String {
        let Some(level) = self.isolation else { return String::new() };
        let what = match level {
            Isolation::Basic => "scripts have your rights as far as no layer takes them",
            Isolation::Confined => "scripts reach their own directories and no network unless they ask",
            Isolation::Contained => "scripts are confined to their directories, and bounded",
        };
        let mut text = format!("isolation: {level}, {what}\n");
        for missing in &self.missing {
            let _ = writeln!(text, "\x20          without {missing}");
        }
        if let Some(name_servers) = &self.name_servers {
            let _ = writeln!(text, "\x20          {name_servers}");
        }
        text
    }

    fn disk_text(&self) -> String {
        let begin = std::iter::once("disk:").chain(std::iter::repeat("     "));
        begin.zip(&self.disk).map(|(begin, line)| format!("{begin}      {line}\n")).collect()
    }

    fn saga_text(&self) -> String {
        let named = [("sagas         ", &self.sagas), ("nats          ", &self.nats_cli)];
        named.into_iter().filter_map(|(name, line)| Some(format!("{name}{}\n", line.as_ref()?))).collect()
    }

    fn log_text(&self) -> String {
        let Some(log) = &self.log else { return String::new() };
        format!("log           {}\nto end it     mycora down --data {}\n", log.display(), self.data.display())
    }

    /// Returns the line, and lines to copy.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { config, ca, cert, key, redis_cli, port, .. } = self;
        let [config, ca, cert, key] = [config, ca, cert, key].map(|path| path.display());
        let ready = self.line();
        let (isolation, disk, log) = (self.isolation_text(), self.disk_text(), self.log_text());
        let saga = self.saga_text();
        format!(
            "{ready}\
             {isolation}\
             {disk}\
             \n\
             command line  export MYCORA_CONFIG={config}\n\
             \x20             mycora flow submit FILE --watch\n\
             as the admin  mycora actor register --new-key FILE --as admin\n\
             \x20             (who may register actors and drain machines; actor 1 may not)\n\
             grpcurl       grpcurl -cacert {ca} -cert {cert} -key {key} localhost:{port} list\n\
             buf curl      buf curl --protocol grpc --cacert {ca} --cert {cert} --key {key} https://localhost:{port} --list-services\n\
             redis-cli     {redis_cli}\n\
             \x20             (context 1; then HGETALL flow:1)\n\
             {saga}\
             {log}"
        )
    }
}
