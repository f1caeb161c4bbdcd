//! `mycora doctor`: what is wrong here, and what to do about it.

mod backing_services;
mod certificates;
mod coordinator;
mod disk;
mod finding;
mod machine;
mod mesh;
mod nats;
mod records;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::Args;
use kv::{Durability, KvEndpoint};
use model::Timestamp;

pub use self::finding::{DoctorReport, Finding, FindingLevel};
pub use self::nats::NatsArgs;
use super::{GlobalFlags, find_profile, profile_path};
use crate::failure::CliError;
use crate::output;
use crate::profile::Profile;

/// Shown below the options.
pub const AFTER_HELP: &str = "\
Checks the profile and its certificates, the coordinator and its services, the clock, the disks of scripts and Redis, and what can run on this machine. Changes nothing without --repair.

--deep reads every record of all contexts, or of the one that --context names, and of actors. Contexts stay in use meanwhile. A record that breaks an invariant is named. What can be repaired is repaired after a question, at a terminal, or with --repair --yes. Only the bootstrap identity may.

Examples:
  mycora doctor
  mycora doctor --redis-url redis://127.0.0.1:6379 --mycelium-ip 127.0.0.1 --output json
  mycora doctor --redis-url redis+cluster://10.0.0.1,10.0.0.2 --durability replicated
  mycora doctor --data /srv/mycora
  mycora doctor --mesh-address http://10.0.0.7:7790
  mycora doctor --deep --as admin
  mycora doctor --deep --context 3 --repair --yes --as admin
  mycora doctor --nats-url nats://127.0.0.1:4222 --nats-user mycora --nats-password-file nats.password

Exit codes: 0 no check fails; 1 one does. Warnings (`warn`) do not count.";

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Check this Redis as well: redis://[user[:password]@]host[:port], unix:///path, redis+cluster://host,host,… or
    /// redis+sentinel://host,host,…/MASTER
    #[arg(long, value_name = "URL", env = "MYCORA_REDIS_URL", hide_env_values = true)]
    pub redis_url: Option<KvEndpoint>,
    /// Work directory of the scripts that this Redis, or a supervisor beside it, serves
    #[arg(long, value_name = "DIR", env = "MYCORA_WORK_DIR", default_value = "/var/lib/mycora/work")]
    pub work_dir: PathBuf,
    /// The data directory of a `mycora up` on this machine [default: $XDG_DATA_HOME/mycora, or ~/.local/share/mycora]
    #[arg(long, value_name = "DIR", env = "MYCORA_DATA")]
    pub data: Option<PathBuf>,
    /// Check that Redis for this durability, as storage is started with: fast, synced or replicated
    #[arg(long, value_name = "LEVEL", env = "MYCORA_DURABILITY", requires = "redis_url")]
    pub durability: Option<Durability>,
    /// Check the port of a service to which the sidecar of a mesh connects (its --mesh-listen), as http://host:port
    #[arg(long, value_name = "URL")]
    pub mesh_address: Option<String>,
    /// Check the Mycelium daemon whose JSON-RPC port has this address [default: 127.0.0.1, where a port is given]
    #[arg(long, value_name = "IP", env = "MYCORA_MYCELIUM_IP")]
    pub mycelium_ip: Option<IpAddr>,
    /// The JSON-RPC port of that daemon [default: 8990, where an address is given]
    #[arg(long, value_name = "PORT", env = "MYCORA_MYCELIUM_PORT")]
    pub mycelium_port: Option<u16>,
    /// Check every record of all contexts, or of the one that --context names. Needs --as admin
    #[arg(long)]
    pub deep: bool,
    /// Repair the records that can be repaired, after a question
    #[arg(long, requires = "deep")]
    pub repair: bool,
    /// Confirm the repair, without a question
    #[arg(long, requires = "repair")]
    pub yes: bool,
    /// The broker of sagas.
    #[command(flatten)]
    pub nats: NatsArgs,
}

/// Looks at everything; gives the exit code.
///
/// # Errors
/// When the report cannot be written, a repair is not confirmed, or Ctrl-C interrupts a check of records.
pub async fn run(args: &DoctorArgs, global: &GlobalFlags) -> Result<u8, CliError> {
    let (profile, mut findings) = profile(global);
    if let Some(profile) = &profile {
        findings.extend(certificates::look(profile, Timestamp::now()));
        findings.extend(coordinator::look(profile).await);
        if args.deep {
            findings.extend(records::look(args, global, profile).await?);
        }
    }
    if let Some(endpoint) = &args.redis_url {
        findings.extend(backing_services::redis(endpoint.clone(), args.durability).await);
    }
    if let Some(address) = &args.mesh_address {
        findings.push(mesh::look(address).await);
    }
    if args.mycelium_ip.is_some() || args.mycelium_port.is_some() {
        let ip = args.mycelium_ip.unwrap_or(Ipv4Addr::LOCALHOST.into());
        findings.push(
            backing_services::mycelium(ip, args.mycelium_port.unwrap_or(mycelium::daemon::PORT_DEFAULT))
                .await,
        );
    }
    findings.extend(nats::look(&args.nats).await);
    findings.extend(disk::look(args).await);
    findings.extend(machine::look().await);
    let report = DoctorReport::new(findings);
    output::answer(global.output, || &report, || report.text())?;
    Ok(u8::from(!report.well))
}

fn profile(global: &GlobalFlags) -> (Option<Profile>, Vec<Finding>) {
    const CHECK: &str = "profile";
    let path = match profile_path(global) {
        Ok(path) => path,
        Err(failure) => return (None, vec![Finding::of_failure(CHECK, &failure.to_string())]),
    };
    match find_profile(global) {
        Ok(profile) => {
            let found = match path.exists() {
                true => path.display().to_string(),
                false => "none, and none is needed: flags say where the coordinator is".to_owned(),
            };
            (Some(profile), vec![Finding::ok(CHECK, found)])
        }
        Err(failure) => (None, vec![Finding::of_failure(CHECK, &failure.to_string())]),
    }
}
