//! Policy of a machine's operator: what jobs may do, by context.
//!
//! An unusable file never takes effect: at the start it is an error, later the previous policy stays in effect.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use identity::VerifyingKey;
use model::{ContextUid, Execution, Grants, ScriptType, Violations};
use service::OperatorNotice;

use crate::metrics::Metrics;

/// Notice to operators while no coordinator is named.
const NO_COORDINATOR_NAMED: &str = "takes no jobs of any coordinator, since none is named: start it with `--coordinator KEY`, or \
                                    name some in its policy. `mycora pki root` shows the key of a coordinator";

/// Maximum size of a policy file.
const FILE_BYTES_MAX: usize = 1024 * 1024;

/// Rule for the jobs of a context.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ContextPolicy {
    allow: bool,
    /// Script types that may run; absent: all.
    script_types: Option<BTreeSet<ScriptType>>,
    /// Coordinators that may send jobs; absent: all.
    coordinators: Option<BTreeSet<String>>,
    /// Requires the signature of the job's actor.
    require_actor_signature: bool,
    /// Keys that may have signed the job; absent: any.
    actor_keys: Option<BTreeSet<String>>,
    /// Number of turns for each turn of a context of weight 1.
    weight: NonZeroU32,
    grants: Grants,
}

impl Default for ContextPolicy {
    fn default() -> Self {
        Self {
            allow: true,
            script_types: None,
            coordinators: None,
            require_actor_signature: false,
            actor_keys: None,
            weight: NonZeroU32::MIN,
            grants: Grants::default(),
        }
    }
}

/// Coordinators whose jobs are accepted where the policy names none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DefaultCoordinators {
    /// Any coordinator that finds the supervisor; for a supervisor that only its own coordinator can reach.
    #[default]
    Anyone,
    /// Those with these root keys, and with roots that came after them.
    Only(BTreeSet<String>),
}

/// The coordinator that sent a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSender<'a> {
    /// Root key of the coordinator.
    pub root: &'a str,
    /// True if the coordinator's jobs are taken where the policy names no coordinators.
    pub is_admitted: bool,
}

/// Rules of a policy file. The default accepts every job and gives the default grants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyRules {
    default: ContextPolicy,
    contexts: BTreeMap<ContextUid, ContextPolicy>,
}

/// Why the policy does not accept a job. Lasting: a retry cannot help until the policy changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyDenial {
    /// No jobs of the context are accepted.
    #[error("the policy of this supervisor takes no jobs of context {0}")]
    Context(ContextUid),
    /// The job's coordinator is not named anywhere.
    #[error(
        "this supervisor takes no jobs of coordinator {0}: its operator has to name it with `--coordinator {0}`, \
         or in `coordinators` of its policy"
    )]
    Unnamed(String),
    /// The job's coordinator may not send it.
    #[error(
        "the policy of this supervisor takes no jobs of context {context} from coordinator {coordinator}"
    )]
    Coordinator {
        /// The job's context.
        context: ContextUid,
        /// Root key of the coordinator that sent the job.
        coordinator: String,
    },
    /// The job's script type may not run.
    #[error("the policy of this supervisor takes no {refused} jobs of context {context}, only {allowed}")]
    Type {
        /// The job's context.
        context: ContextUid,
        /// The job's type.
        refused: ScriptType,
        /// Script types that may run, in words.
        allowed: String,
    },
    /// No actor has signed it.
    #[error("the policy of this supervisor takes only jobs of context {0} that their actors have signed")]
    Unsigned(ContextUid),
    /// The job is signed by a key whose jobs are not taken.
    #[error("the policy of this supervisor takes no jobs of context {context} that are signed by {signer}")]
    Actor {
        /// The job's context.
        context: ContextUid,
        /// The key that signed it.
        signer: String,
    },
    /// The policy names a coordinator by a root that is about to be succeeded.
    #[error(
        "the policy of this supervisor names coordinator {old} in `{place}` and not {new}: nothing is passed on before \
         its operator adds {new} to `coordinators` there"
    )]
    Succession {
        /// The table of the policy.
        place: String,
        /// The root that it names.
        old: String,
        /// The one after it.
        new: String,
    },
    /// The job may not use the network.
    #[error("the job asks for the network, and the policy of this supervisor gives context {0} none")]
    Network(ContextUid),
}

impl PolicyDenial {
    /// Returns the reason code for coordinators.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Network(_) => "NETWORK_REFUSED",
            Self::Context(_)
            | Self::Unnamed(_)
            | Self::Coordinator { .. }
            | Self::Type { .. }
            | Self::Unsigned(_)
            | Self::Succession { .. }
            | Self::Actor { .. } => "POLICY_REFUSED",
        }
    }
}

impl PolicyRules {
    /// Reads a file's text.
    ///
    /// # Errors
    /// All violations in the text.
    pub fn parse(text: &str) -> Result<Self, Violations> {
        file::parse(text)
    }

    /// Checks that a root may be succeeded: where the policy names a root, its successor must be named too.
    ///
    /// # Errors
    /// [`PolicyDenial::Succession`]
    pub fn check_rotation(&self, old: &str, new: &str) -> Result<(), PolicyDenial> {
        let contexts = self.contexts.iter().map(|(context, rule)| (format!("contexts.{context}"), rule));
        for (place, rule) in contexts.chain([("default".to_owned(), &self.default)]) {
            let Some(named) = &rule.coordinators else { continue };
            if named.contains(old) && !named.contains(new) {
                return Err(PolicyDenial::Succession { place, old: old.to_owned(), new: new.to_owned() });
            }
        }
        Ok(())
    }

    /// Returns true if some rule names a coordinator whose jobs it takes.
    #[must_use]
    pub fn names_somebody(&self) -> bool {
        let names = |rule: &ContextPolicy| {
            rule.allow && rule.coordinators.as_ref().is_some_and(|named| !named.is_empty())
        };
        names(&self.default) || self.contexts.values().any(names)
    }

    /// Returns the number of turns of a context for each turn of a context of weight 1, while jobs of both wait.
    #[must_use]
    pub fn weight(&self, context: ContextUid) -> NonZeroU32 {
        self.contexts.get(&context).unwrap_or(&self.default).weight
    }

    /// Returns the grants for a job from this coordinator that this actor signed, if any did.
    ///
    /// # Errors
    /// A [`PolicyDenial`].
    pub fn grant(
        &self,
        job: &Execution,
        sender: JobSender<'_>,
        signer: Option<VerifyingKey>,
    ) -> Result<Grants, PolicyDenial> {
        let context = job.job_key.context;
        let rule = self.contexts.get(&context).unwrap_or(&self.default);
        if !rule.allow {
            return Err(PolicyDenial::Context(context));
        }
        match &rule.coordinators {
            Some(known) if !known.contains(sender.root) => {
                return Err(PolicyDenial::Coordinator { context, coordinator: sender.root.to_owned() });
            }
            None if !sender.is_admitted => return Err(PolicyDenial::Unnamed(sender.root.to_owned())),
            _ => {}
        }
        if let Some(types) = &rule.script_types
            && !types.contains(&job.script_type)
        {
            let allowed: Vec<_> = types.iter().map(|script_type| script_type.as_str()).collect();
            let allowed = if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") };
            return Err(PolicyDenial::Type { context, refused: job.script_type, allowed });
        }
        match signer.map(|signer| signer.to_string()) {
            None if rule.require_actor_signature => return Err(PolicyDenial::Unsigned(context)),
            Some(signer) if rule.actor_keys.as_ref().is_some_and(|keys| !keys.contains(&signer)) => {
                return Err(PolicyDenial::Actor { context, signer });
            }
            _ => {}
        }
        if job.network && !rule.grants.network {
            return Err(PolicyDenial::Network(context));
        }
        Ok(rule.grants.clone())
    }
}

/// Why a policy file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    /// The file cannot be read.
    #[error("policy {} cannot be read", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file has contents that no policy may have.
    #[error("policy {} cannot be used: {violations}", path.display())]
    Wrong {
        /// Which file.
        path: PathBuf,
        /// All violations of the file.
        violations: Violations,
    },
}

/// The current policy. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Policy(Arc<PolicyInner>);

#[derive(Debug, Default)]
struct PolicyInner {
    path: Option<PathBuf>,
    admitted: DefaultCoordinators,
    state: Mutex<PolicyState>,
}

#[derive(Debug, Default)]
struct PolicyState {
    rules: Arc<PolicyRules>,
    /// The text, or the error of reading it, that was checked last.
    judged: String,
}

impl Policy {
    /// Loads a policy file; without one, the default holds for every admitted coordinator.
    ///
    /// # Errors
    /// A [`PolicyFileError`].
    pub fn load(path: Option<&Path>, admitted: DefaultCoordinators) -> Result<Self, PolicyFileError> {
        let Some(path) = path else {
            return Ok(Self(Arc::new(PolicyInner { admitted, ..PolicyInner::default() })));
        };
        let judged = read(path)?;
        let rules = Arc::new(judge(path, &judged)?);
        let state = Mutex::new(PolicyState { rules, judged });
        Ok(Self(Arc::new(PolicyInner { path: Some(path.to_owned()), admitted, state })))
    }

    /// Returns true if jobs of a coordinator are taken where the file names none. `current` returns the root that now
    /// stands in place of a former one.
    #[must_use]
    pub fn admits(&self, root: &str, current: impl Fn(&str) -> String) -> bool {
        match &self.0.admitted {
            DefaultCoordinators::Anyone => true,
            DefaultCoordinators::Only(named) => {
                named.contains(root) || named.iter().any(|named| current(named) == root)
            }
        }
    }

    /// Returns why no coordinator's jobs are accepted, and what to do about it; nothing while some are.
    #[must_use]
    pub fn intake_problem(&self) -> Option<&'static str> {
        let nobody = matches!(&self.0.admitted, DefaultCoordinators::Only(named) if named.is_empty());
        (nobody && !self.rules().names_somebody()).then_some(NO_COORDINATOR_NAMED)
    }

    /// Returns the rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<PolicyRules> {
        Arc::clone(&self.0.state.lock().unwrap_or_else(PoisonError::into_inner).rules)
    }

    /// Reads the file again if it has changed; returns true if it had.
    ///
    /// # Errors
    /// A [`PolicyFileError`], once for each broken text; the previous policy stays in effect.
    pub fn reload_if_changed(&self) -> Result<bool, PolicyFileError> {
        let Some(path) = &self.0.path else { return Ok(false) };
        let read = read(path);
        let judged = match &read {
            Ok(text) => text.clone(),
            Err(error) => format!("{error:?}"),
        };
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.judged == judged {
            return Ok(false);
        }
        state.judged = judged;
        state.rules = Arc::new(judge(path, &read?)?);
        Ok(true)
    }
}

fn read(path: &Path) -> Result<String, PolicyFileError> {
    let unreadable = |source| PolicyFileError::Unreadable { path: path.to_owned(), source };
    identity::exposure::check_trusted(path).map_err(|exposed| unreadable(exposed.into()))?;
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > FILE_BYTES_MAX as u64 {
        return Err(unreadable(io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes"))));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

fn judge(path: &Path, text: &str) -> Result<PolicyRules, PolicyFileError> {
    PolicyRules::parse(text)
        .map_err(|violations| PolicyFileError::Wrong { path: path.to_owned(), violations })
}

/// Reloads the file for ever: when it changes, and at once on SIGHUP. The caller drops the future to end it.
pub async fn keep(policy: Policy, metrics: Metrics, intake: OperatorNotice) {
    report_intake(&policy, &intake);
    if policy.0.path.is_none() {
        return;
    }
    let look = |on_demand| match policy.reload_if_changed() {
        Ok(true) => {
            metrics.policy_read("taken");
            tracing::info!("the policy file was read and is in effect");
            report_intake(&policy, &intake);
        }
        Ok(false) if on_demand => tracing::info!("the policy file has not changed"),
        Ok(false) => {}
        Err(error) => {
            metrics.policy_read("refused");
            let error = service::error_chain(&error);
            tracing::error!("{error}; the previous policy stays in effect");
        }
    };
    service::poll_files("the policy file", look).await;
}

/// Notifies operators when no coordinator is named.
fn report_intake(policy: &Policy, intake: &OperatorNotice) {
    let problem = policy.intake_problem();
    if let Some(problem) = problem {
        tracing::warn!("this supervisor {problem}");
    }
    intake.set(problem);
}

#[cfg(test)]
mod tests;
