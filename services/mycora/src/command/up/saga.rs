//! Arguments of `mycora up` for sagas.

use std::path::PathBuf;

use clap::Args;
use http::uri::PathAndQuery;
use saga::command_service::SUBMIT_COMMAND;
use saga::nats_login::NatsLogin;
use saga::visibility::SagaVisibilityFlags;

use crate::up::{NatsOptions, SagaOptions};

/// The flags; all but the first mean nothing without it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sagas")]
pub struct SagaFlags {
    /// Run sagas as well, with the calls that they order, over a private `nats-server`: it is started beside Redis, on a free port of
    /// 127.0.0.1
    #[arg(long, env = "MYCORA_SAGA", value_parser = clap::builder::FalseyValueParser::new(), action = clap::ArgAction::SetTrue)]
    pub saga: bool,
    /// The operator's manifests: all `.yaml` files of this directory
    #[arg(long, env = "MYCORA_MANIFESTS", value_name = "DIR")]
    pub manifests: Option<PathBuf>,
    /// The tenants with sagas: a file that maps them to their contexts [default: context 1 alone, as
    /// the tenant `1`]
    #[arg(long, env = "MYCORA_TENANTS", value_name = "FILE")]
    pub tenants: Option<PathBuf>,
    /// Secrets that providers name: a file for each, those of a tenant in a directory of its name [default: DIR/secrets of the data
    /// directory, where `actor-1` is the key of actor 1]
    #[arg(long, env = "MYCORA_SECRETS", value_name = "DIR")]
    pub secrets: Option<PathBuf>,
    /// The service for commands of aggregates, as https://host:port with a certificate of the authority in use here
    #[arg(long, env = "MYCORA_GATEWAY", value_name = "URL")]
    pub gateway: Option<String>,
    /// The method that takes them
    #[arg(long, env = "MYCORA_GATEWAY_METHOD", value_name = "PATH", default_value = SUBMIT_COMMAND)]
    pub gateway_method: PathAndQuery,
    /// The program for the private server [default: `nats-server` in the PATH, or Debian's /usr/sbin/nats-server]
    #[arg(long, env = "MYCORA_NATS_SERVER", value_name = "FILE")]
    pub nats_server: Option<PathBuf>,
    /// Use this NATS server with JetStream instead of a private one. The stream AGGREGATE_EVENTS has to be there
    #[arg(long, env = "MYCORA_NATS_URL", value_name = "URL")]
    pub nats_url: Option<String>,
    /// How to authenticate to that server
    #[command(flatten)]
    pub nats_login: NatsLogin,
    /// Flags that say how much of the work of sagas is shown
    #[command(flatten)]
    pub seeing: SagaVisibilityFlags,
}

impl SagaFlags {
    /// How sagas are run; not at all without `--saga`.
    pub(super) fn options(self) -> Option<SagaOptions> {
        let nats = match self.nats_url {
            Some(url) => NatsOptions::Named { url, login: self.nats_login },
            None => NatsOptions::Private { program: self.nats_server },
        };
        self.saga.then_some(SagaOptions {
            manifests: self.manifests,
            tenants: self.tenants,
            secrets: self.secrets,
            gateway: self.gateway.map(|url| (url, self.gateway_method)),
            nats,
            seeing: self.seeing.seeing(),
        })
    }
}
