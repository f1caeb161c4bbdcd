//! How a service is told of its daemon.

use std::net::IpAddr;
use std::sync::Arc;

use clap::Args;
use prometheus::Registry;

use super::{Config, DaemonBus, Metrics, PORT_DEFAULT};
use crate::bus::Bus;

/// The Mycelium daemon of this machine.
#[derive(Debug, Clone, Args)]
pub struct MyceliumFlags {
    /// Address of the JSON-RPC port of the Mycelium daemon; without it there is no `mycelium:` address here
    #[arg(long, env = "MYCORA_MYCELIUM_IP", value_name = "IP")]
    pub mycelium_ip: Option<IpAddr>,
    /// That port
    #[arg(long, env = "MYCORA_MYCELIUM_PORT", value_name = "PORT", default_value_t = PORT_DEFAULT)]
    pub mycelium_port: u16,
    /// Nothing else uses that daemon: its messages are taken whatever their topic, which costs it less
    #[arg(long, env = "MYCORA_MYCELIUM_ALONE")]
    pub mycelium_alone: bool,
}

impl MyceliumFlags {
    /// A bus over the daemon, if there is to be one. Has to be called within a Tokio runtime.
    ///
    /// # Errors
    /// When metrics of the same names are registered already.
    pub fn bus(&self, registry: &Registry) -> prometheus::Result<Option<Arc<dyn Bus>>> {
        let Some(ip) = self.mycelium_ip else { return Ok(None) };
        let config = Config { alone: self.mycelium_alone, ..Config::at(ip, self.mycelium_port) };
        let bus = DaemonBus::start(&config, Metrics::new(registry)?);
        Ok(Some(Arc::new(bus.expect("an address and a port make a url"))))
    }
}
