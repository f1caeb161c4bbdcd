//! The supervisor and the runners of the machine that an all-in-one is on.

use std::path::PathBuf;
use std::sync::Arc;

use kv::Kv;
use model::Address;
use mycelium::{Bus, MemoryNetwork};
use prometheus::Registry;
use rpc::{Channel, MountBuilder};
use service::Shutdown;

use super::{
    DRAIN_DEADLINE, GROUP, READY_TIMEOUT, SUPERVISOR_NODE, Suite, SuiteParts, build_error, node_key,
    wait_ready,
};
use crate::bootstrap;
use crate::up::{UpError, WORK_DIR};

impl Suite {
    /// The supervisor and the runners of this machine, unless there are to be none.
    pub(super) async fn machine(
        &mut self,
        parts: &SuiteParts<'_>,
        metrics: &Registry,
        network: &MemoryNetwork,
        mount: MountBuilder,
    ) -> Result<MountBuilder, UpError> {
        if !parts.options.supervisor {
            return Ok(mount);
        }
        let work_dir = parts.dir.join(WORK_DIR);
        let bus: Arc<dyn Bus> = Arc::new(network.node(node_key(parts.dir, SUPERVISOR_NODE)?));
        let deps =
            supervisor::Deps { kv: Kv::new(parts.redis.supervisor_endpoint()), bus: Some(bus), metrics };
        let legacy =
            parts.options.legacy.as_deref().map(supervisor::legacy::LegacyBindings::load).transpose();
        let config = supervisor::Config {
            legacy: legacy.map_err(build_error("supervisor"))?.unwrap_or_default(),
            open_queues: parts.options.open_queues,
            served_by_others: parts.options.served_by_others.clone(),
            policy: parts.options.policy.clone(),
            disk_floor: parts.options.scripts.disk_floor,
            ..supervisor::Config::new(work_dir.clone())
        };
        let app = config.build(deps).map_err(build_error("supervisor"))?;
        let mount = app.mount_public(mount);
        let readiness = app.readiness();
        self.readiness.include("supervisor", &readiness);
        self.spawn("supervisor", app.run(self.stop.clone()));
        wait_ready("supervisor", &readiness).await?;
        let kv = Kv::new(parts.redis.runner_endpoint());
        let settings = runner::RunnerSettings {
            group: GROUP.parse().map_err(build_error("runner"))?,
            slots: parts.options.slots,
            drain_deadline: DRAIN_DEADLINE,
            scripts: parts.options.scripts.clone(),
            launcher: parts.options.launcher.clone(),
            ..runner::RunnerSettings::new(work_dir)
        };
        self.runner_start = Some((settings, kv, parts.redis.supervisor_database()));
        self.start_runner().await?;
        Ok(mount)
    }

    pub(super) async fn start_runner(&mut self) -> Result<(), UpError> {
        let Some((settings, kv, database)) = self.runner_start.clone() else { return Ok(()) };
        // The one before gives up what is its own by being dropped.
        self.runner = None;
        let running = runner::start(settings, &kv, database, &Shutdown::new()).await;
        self.runner = Some(running.map_err(build_error("runner"))?);
        Ok(())
    }

    /// Waits until the registry sees what runs here, before the scheduler takes over its view: the first job would find no runner
    /// otherwise. Runners elsewhere are not waited for.
    pub(super) async fn runner_seen(&self, actor: Channel, parts: &SuiteParts<'_>) -> Result<(), UpError> {
        let Some(runner) = &self.runner else { return Ok(()) };
        let here = Address::MyceliumKey(node_key(parts.dir, SUPERVISOR_NODE)?.to_string());
        let seen = bootstrap::wait_for_runner(actor, &here, runner.instances().len());
        match tokio::time::timeout(READY_TIMEOUT, seen).await {
            Ok(seen) => seen.map_err(UpError::from),
            Err(_) => {
                tracing::warn!("the runners of this machine are not seen yet; jobs wait for them");
                Ok(())
            }
        }
    }
}

/// Ends the scripts of runners that were cut.
pub(super) async fn end_scripts(work_dir: PathBuf) {
    match tokio::task::spawn_blocking(move || runner::sweep(&work_dir)).await {
        Ok(Ok(ended)) => ended.iter().for_each(|script| tracing::warn!("ended a script: {script}")),
        Ok(Err(error)) => tracing::warn!(%error, "scripts may go on; the next start ends them"),
        Err(error) => tracing::warn!(%error, "scripts may go on; the next start ends them"),
    }
}

/// Returns the addresses of runners that take jobs of context 1; `true` for the one on this machine.
pub(super) fn runner_addresses(parts: &SuiteParts<'_>) -> Result<Vec<(Address, bool)>, UpError> {
    let mut addresses = Vec::new();
    if parts.options.supervisor {
        let key = node_key(parts.dir, SUPERVISOR_NODE)?;
        addresses.push((Address::MyceliumKey(key.to_string()), true));
    }
    addresses.extend(parts.options.runners.iter().map(|address| (address.clone(), false)));
    Ok(addresses)
}
