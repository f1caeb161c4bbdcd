//! Flags that configure a service's daemon.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use clap::Args;
use prometheus::Registry;

use super::{Config, DaemonBus, Metrics, PORT_DEFAULT};
use crate::bus::Bus;

/// The Mycelium daemon of this machine.
#[derive(Debug, Clone, Default, Args)]
pub struct MyceliumFlags {
    /// Address of the JSON-RPC port of the Mycelium daemon [default: 127.0.0.1, where a port is given]. Without both there is no
    /// `mycelium:` address here
    #[arg(long, env = "MYCORA_MYCELIUM_IP", value_name = "IP")]
    pub mycelium_ip: Option<IpAddr>,
    /// Port of that daemon [default: 8990, where an address is given]
    #[arg(long, env = "MYCORA_MYCELIUM_PORT", value_name = "PORT")]
    pub mycelium_port: Option<u16>,
    /// Nothing else uses that daemon: its messages are taken whatever their topic, which costs it less
    #[arg(long, env = "MYCORA_MYCELIUM_ALONE")]
    pub mycelium_alone: bool,
}

impl MyceliumFlags {
    /// The daemon's address and port, where one is named by either.
    #[must_use]
    pub fn daemon(&self) -> Option<(IpAddr, u16)> {
        if self.mycelium_ip.is_none() && self.mycelium_port.is_none() {
            return None;
        }
        let ip = self.mycelium_ip.unwrap_or(Ipv4Addr::LOCALHOST.into());
        Some((ip, self.mycelium_port.unwrap_or(PORT_DEFAULT)))
    }

    /// A bus over the daemon, if there is to be one. Has to be called within a Tokio runtime.
    ///
    /// # Errors
    /// When metrics of the same names are registered already.
    pub fn bus(&self, registry: &Registry) -> prometheus::Result<Option<Arc<dyn Bus>>> {
        let Some((ip, port)) = self.daemon() else { return Ok(None) };
        let config = Config { alone: self.mycelium_alone, ..Config::at(ip, port) };
        let bus = DaemonBus::start(&config, Metrics::new(registry)?);
        Ok(Some(Arc::new(bus.expect("an address and a port make a url"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_named_by_its_address_or_its_port() {
        let daemon = |ip: Option<&str>, port| {
            let ip = ip.map(|ip| ip.parse().expect("an address"));
            let flags = MyceliumFlags { mycelium_ip: ip, mycelium_port: port, ..MyceliumFlags::default() };
            flags.daemon().map(|(ip, port)| format!("{ip} {port}"))
        };
        assert_eq!(daemon(None, None), None);
        assert_eq!(daemon(None, Some(9)).as_deref(), Some("127.0.0.1 9"));
        assert_eq!(daemon(Some("::1"), None).as_deref(), Some("::1 8990"));
        assert_eq!(daemon(Some("10.0.0.1"), Some(9)).as_deref(), Some("10.0.0.1 9"));
    }
}
