//! What `mycora up` tells when it serves: lines to copy, or the same for programs.

use std::path::PathBuf;

use serde::Serialize;

use super::directory::DataDir;
use super::redis::PrivateRedis;
use crate::profile::Profile;

/// What one has to know to use an all-in-one.
#[derive(Debug, Clone, Serialize)]
pub struct Banner {
    /// Where clients reach it.
    pub address: String,
    /// Where everything is kept.
    pub data: PathBuf,
    /// What scripts are kept from.
    pub isolation: &'static str,
    /// The client profile.
    pub config: PathBuf,
    /// The certificate authority.
    pub ca: PathBuf,
    /// The first actor's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// A command that looks into Redis.
    pub redis_cli: String,
    #[serde(skip)]
    port: u16,
}

impl Banner {
    pub(super) fn new(dir: &DataDir, redis: &PrivateRedis, profile: &Profile, port: u16) -> Self {
        Self {
            address: format!("https://127.0.0.1:{port}"),
            data: dir.path().to_owned(),
            isolation: "basic",
            config: dir.join("client.toml"),
            ca: profile.ca.clone().unwrap_or_default(),
            cert: profile.cert.clone().unwrap_or_default(),
            key: profile.key.clone().unwrap_or_default(),
            redis_cli: redis.cli_line(dir, 1),
            port,
        }
    }

    /// That it serves, and where.
    #[must_use]
    pub fn line(&self) -> String {
        format!("mycora is ready on {}, data in {}\n", self.address, self.data.display())
    }

    /// The same, and lines to copy.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { isolation, config, ca, cert, key, redis_cli, port, .. } = self;
        let [config, ca, cert, key] = [config, ca, cert, key].map(|path| path.display());
        let ready = self.line();
        format!(
            "{ready}\
             isolation: {isolation}, scripts run with your rights\n\
             \n\
             command line  export MYCORA_CONFIG={config}\n\
             \x20             mycora flow submit FILE --watch\n\
             grpcurl       grpcurl -cacert {ca} -cert {cert} -key {key} localhost:{port} list\n\
             buf curl      buf curl --protocol grpc --cacert {ca} --cert {cert} --key {key} https://localhost:{port} --list-services\n\
             redis-cli     {redis_cli}\n\
             \x20             (context 1; then HGETALL flow:1)\n"
        )
    }
}
