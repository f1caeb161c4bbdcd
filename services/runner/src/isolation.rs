//! Isolation of this runner's jobs: the layers that this machine supports, and the confinement of each job.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::execution::Grants;
use model::{ContextUid, Execution, Isolation, Reason, ReasonCode, ScriptType};
use queue::work_dir::{context_dir, contexts_dir};
use sandbox::disk_space::DiskFloors;
use sandbox::{
    BrokerRules, CgroupSlot, Cgroups, Confinement, FileRules, IsolationSupport, ProcessLimits,
    SandboxLauncher, SyscallRules, UserIdRange,
};

use crate::config::{RunnerSettings, ScriptFlags};
use crate::disk_quota::DiskQuotas;
use crate::process_wait::JobTimeLimit;
use crate::runtime::ScriptJob;
use crate::work_dir::RunnerWorkDir;
use crate::{OPEN_FILES_MAX, RunnerStartError};

/// Isolation of the jobs of this runner.
#[derive(Debug)]
pub(crate) struct Isolator {
    launcher: SandboxLauncher,
    isolation_support: IsolationSupport,
    root: PathBuf,
    owners: Option<UserIdRange>,
    cgroups: Option<Cgroups>,
    scripts: ScriptFlags,
    disk_quotas: DiskQuotas,
}

impl Isolator {
    /// Determines which layers this machine supports.
    ///
    /// # Errors
    /// When the launcher cannot be started, or the machine supports less than the settings demand.
    pub(crate) async fn find(
        settings: &RunnerSettings,
        work_dir: &RunnerWorkDir,
    ) -> Result<Self, RunnerStartError> {
        // A hash of the work directory distinguishes runners of the same name on one machine.
        let place = model::BlobHash::of(work_dir.root.as_os_str().as_encoded_bytes()).to_string();
        let name = format!("mycora-{}-{}-{}", settings.group, settings.instance, &place[..8]);
        let cgroups = Cgroups::make(&name).map_err(|error| error.to_string());
        let owners = own_users(settings, work_dir);
        let probe = sandbox::IsolationProbe {
            launcher: &settings.launcher,
            layers: settings.layers,
            cgroups: cgroups.as_ref().map_err(Clone::clone),
            owner: owners.as_ref().map(UserIdRange::first).map_err(Clone::clone),
            dir: &work_dir.running,
        };
        let mut support = probe.run().await.map_err(RunnerStartError::Launcher)?;
        if let Some(owner) = owners.as_ref().ok().filter(|_| support.owner)
            && let Err(why) = sandbox::open_files::can_inspect(owner.first())
        {
            support.missing.push(sandbox::MissingLayer { layer: "open-files", why });
        }
        for missing in &support.missing {
            tracing::info!(
                layer = missing.layer, why = %missing.why,
                "a layer of isolation is not available on this machine"
            );
        }
        if support.level < settings.scripts.isolation {
            let why = support.missing.iter().map(|missing| format!("{}: {}", missing.layer, missing.why));
            let why = why.collect::<Vec<_>>().join("; ");
            return Err(RunnerStartError::Isolation {
                demanded: settings.scripts.isolation,
                level: support.level,
                why,
            });
        }
        Ok(Self {
            launcher: settings.launcher.clone(),
            owners: owners.ok().filter(|_| support.owner),
            cgroups: cgroups.ok().filter(|_| support.cgroup),
            isolation_support: support,
            root: work_dir.root.clone(),
            scripts: settings.scripts.clone(),
            disk_quotas: DiskQuotas::new(
                &work_dir.root,
                &work_dir.held,
                DiskFloors::new(work_dir.root.clone(), settings.scripts.disk_floor),
            ),
        })
    }

    /// Returns the disk quotas of contexts.
    pub(crate) fn disk_quotas(&self) -> &DiskQuotas {
        &self.disk_quotas
    }

    /// Returns the layers that this machine supports, and those that it lacks.
    pub(crate) fn isolation_support(&self) -> &IsolationSupport {
        &self.isolation_support
    }

    /// Returns the level that jobs get, whichever runtime executes them.
    pub(crate) fn level(&self) -> Isolation {
        self.isolation_support.level
    }

    /// Returns the layers that provide this level.
    pub(crate) fn layers(&self) -> &[String] {
        &self.isolation_support.layers
    }

    /// Returns the launcher of a job's first process.
    pub(crate) fn launcher(&self) -> &SandboxLauncher {
        &self.launcher
    }

    /// Refuses a job that demands more than there is.
    pub(crate) fn check(&self, execution: &Execution, grants: &Grants) -> Result<(), Reason> {
        let demanded = execution.isolation.max(grants.isolation);
        if demanded > self.level() {
            let detail = format!("it demands `{demanded}`, and this instance gives `{}`", self.level());
            return Err(Reason::new(ReasonCode::IsolationUnavailable, detail));
        }
        if execution.network && !grants.network {
            return Err(Reason::new(ReasonCode::NetworkRefused, "the policy of this supervisor gives none"));
        }
        if execution.network && demanded >= Isolation::Confined && !self.isolation_support.network {
            let detail = "it demands the network and to be confined, and nothing here keeps it from the ports of this machine";
            return Err(Reason::new(ReasonCode::IsolationUnavailable, detail));
        }
        Ok(())
    }

    /// Returns the user that a context's scripts run as, if it is not the runner's own. Makes the context's
    /// directory.
    pub(crate) fn owner(&self, context: ContextUid) -> io::Result<Option<u32>> {
        let dir = context_dir(&self.root, context);
        match &self.owners {
            Some(owners) => owners.assign(&contexts_dir(&self.root), &dir).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the user for trying programs before there are contexts.
    pub(crate) fn trial_owner(&self) -> Option<u32> {
        self.owners.as_ref().map(UserIdRange::first)
    }

    /// Makes a slot for one job at a time, with its own bounds on processes and memory.
    pub(crate) fn slot(&self, script_type: ScriptType, number: usize) -> Option<Arc<CgroupSlot>> {
        let slot = self.cgroups.as_ref()?.slot(&format!("{script_type}-{number}"));
        match slot {
            Ok(slot) => Some(Arc::new(slot)),
            Err(error) => {
                tracing::warn!(%error, "a control group cannot be made");
                None
            }
        }
    }

    /// Makes a slot for one engine, beside those for programs that its jobs start.
    pub(crate) fn engine_slot(&self, name: &str) -> Option<CgroupSlot> {
        let made = self.cgroups.as_ref()?.slot(name);
        made.inspect_err(|error| tracing::warn!(%error, "a control group cannot be made")).ok()
    }

    /// Returns the confinement of an engine. It has only what it is given at its start: all descriptors that it may have are in
    /// use, so it can open neither a file nor a socket.
    pub(crate) fn engine_confinement(
        &self,
        owner: Option<u32>,
        cgroups: Vec<PathBuf>,
        address_bytes: u64,
    ) -> Confinement {
        Confinement {
            limits: ProcessLimits {
                address_space: cgroups.is_empty().then_some(address_bytes),
                open_files: Some(3),
                file_size: Some(0),
                ..ProcessLimits::default()
            },
            cgroups,
            owner,
            files: self.isolation_support.files.then(FileRules::default),
            syscalls: self.isolation_support.syscalls.then_some(SyscallRules { network: false }),
            // An engine opens no file and no socket, so the init has no calls to make in its place.
            broker: BrokerRules::default(),
        }
    }

    /// Returns the confinement of a job, which may read `reads` in addition to the paths of every script.
    ///
    /// # Errors
    /// When the slot's limits cannot be set.
    pub(crate) fn confinement(&self, job: &ScriptJob, reads: &[PathBuf]) -> io::Result<Confinement> {
        if let Some(slot) = &job.slot {
            slot.set_limits(job.grants.memory_bytes, job.grants.processes)?;
        }
        let mut confinement =
            self.base_confinement(job.workspace.dir(), job.workspace.owner(), reads, job.execution.network);
        confinement.broker = self.broker(job, job.workspace.dir());
        confinement.limits = self.limits(job);
        confinement.cgroups = job.slot.iter().flat_map(|slot| slot.dirs()).cloned().collect();
        Ok(confinement)
    }

    /// Returns the confinement of a process that may write in `dir` and runs as `owner`, without bounds that are
    /// counted.
    pub(crate) fn base_confinement(
        &self,
        dir: &Path,
        owner: Option<u32>,
        reads: &[PathBuf],
        network: bool,
    ) -> Confinement {
        let mut read = sandbox::system_paths();
        read.extend(self.scripts.allow_read.iter().chain(reads).cloned());
        let mut write = vec![dir.to_owned()];
        write.extend(self.scripts.allow_write.iter().cloned());
        Confinement {
            limits: ProcessLimits { open_files: Some(OPEN_FILES_MAX), ..ProcessLimits::default() },
            cgroups: Vec::new(),
            owner,
            files: self.isolation_support.files.then_some(FileRules { read, write }),
            syscalls: self.isolation_support.syscalls.then_some(SyscallRules { network }),
            broker: BrokerRules::default(),
        }
    }

    /// Returns the calls that the init makes in a job's place, since no other layer guards them: connections, attribute changes
    /// to files outside of `dir`, forks.
    pub(crate) fn broker(&self, job: &ScriptJob, dir: &Path) -> BrokerRules {
        let IsolationSupport { network, attributes, processes, .. } = self.isolation_support;
        let has_network = job.execution.network;
        // A context with its own user cannot reach files of others anyway.
        let is_ours = job.workspace.owner().is_none();
        let places =
            || std::iter::once(dir.to_owned()).chain(self.scripts.allow_write.iter().cloned()).collect();
        BrokerRules {
            addresses: (has_network && network).then(|| job.grants.addresses.clone()),
            attributes: (is_ours && attributes).then(places),
            processes: (job.slot.is_none() && processes).then_some(job.grants.processes),
            jobs_below: false,
        }
    }

    /// Returns the bounds of each process of a job, for machines without a control group that bounds them together.
    fn limits(&self, job: &ScriptJob) -> ProcessLimits {
        let bounded = job.slot.is_some();
        ProcessLimits {
            cpu_secs: JobTimeLimit::of(job).cpu_secs(),
            address_space: (!bounded).then_some(job.grants.memory_bytes),
            open_files: Some(OPEN_FILES_MAX),
            file_size: Some(job.grants.disk_bytes.min(job.grants.context_disk_bytes)),
            // The kernel counts these per user, so for all jobs of a context together: used only where nothing counts per job.
            processes: job
                .workspace
                .owner()
                .filter(|_| !bounded && !self.isolation_support.processes)
                .map(|_| u64::from(job.grants.processes)),
        }
    }
}

/// The users of contexts, or why there are none.
fn own_users(settings: &RunnerSettings, work_dir: &RunnerWorkDir) -> Result<UserIdRange, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("the runner is not root".to_owned());
    }
    if !settings.layers.owner {
        return Err("it is switched off".to_owned());
    }
    sandbox::reachable(&work_dir.root)
        .map_err(|closed| format!("other users cannot pass through {}", closed.display()))?;
    work_dir.open_to_others().map_err(|error| format!("the work directory cannot be opened: {error}"))?;
    match settings.scripts.uid_base {
        Some(base) => Ok(UserIdRange::new(base)),
        None => UserIdRange::of_directory(&contexts_dir(&work_dir.root))
            .map_err(|error| format!("no user ids can be chosen: {error}")),
    }
}
