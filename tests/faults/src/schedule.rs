//! Faults that are injected into a suite, drawn from a seed alone.

use std::time::Duration;

use model::limits::LEASE_SECS;

use crate::draw::Draw;

/// Separates the random numbers of the schedule from those of the load.
const PURPOSE: u64 = 1;

/// Kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A process is killed without a warning, and started again.
    Kill,
    /// A process is stopped gracefully, and started again when it has ended.
    Terminate,
    /// A process is stopped in its tracks, and goes on later.
    Stop,
    /// A link is cut: what is open is closed, and new connections too.
    Cut,
    /// A link passes everything on late.
    Delay,
    /// A link takes everything and passes nothing on.
    Swallow,
    /// A link passes requests on and no answers: the outcome of every call is unknown.
    SwallowAnswers,
    /// A link over which a lease is held keeps everything back until the lease has ended, and passes it on then: others have taken
    /// over by the time that what was under way arrives.
    Hold,
    /// A link over which a process is given what others may take as well passes requests on and keeps the answers back: others are
    /// given it meanwhile, and then the answers arrive.
    HoldAnswers,
    /// The disk is full.
    DiskFull,
    /// Redis is killed without a warning, and started again.
    RedisKill,
    /// Redis is stopped in its tracks, and goes on later.
    RedisStop,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::Kill,
        Self::Terminate,
        Self::Stop,
        Self::Cut,
        Self::Delay,
        Self::Swallow,
        Self::SwallowAnswers,
        Self::Hold,
        Self::HoldAnswers,
        Self::DiskFull,
        Self::RedisKill,
        Self::RedisStop,
    ];

    /// Returns the name of the kind in tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill -9",
            Self::Terminate => "SIGTERM",
            Self::Stop => "stopped",
            Self::Cut => "link cut",
            Self::Delay => "link delayed",
            Self::Swallow => "link swallows all",
            Self::SwallowAnswers => "link swallows answers",
            Self::Hold => "link outlasts a lease",
            Self::HoldAnswers => "link keeps answers",
            Self::DiskFull => "disk full",
            Self::RedisKill => "redis kill -9",
            Self::RedisStop => "redis stopped",
        }
    }
}

/// One thing that goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: Kind,
    /// The process or the link; empty for the disk and Redis.
    pub target: String,
    /// How long the load goes on undisturbed before it.
    pub before: Duration,
    /// How long it lasts.
    pub lasts: Duration,
}

/// Parts of a suite that faults can hit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets {
    /// Processes, by name.
    pub programs: Vec<String>,
    /// Links, by name.
    pub links: Vec<String>,
    /// Those of them over which a process holds a lease that others wait for.
    pub leases: Vec<String>,
    /// Those of them over which a process is given what others may take as well.
    pub shares: Vec<String>,
    /// True if there is a disk that can be filled.
    pub disk: bool,
    /// True if Redis can be killed and started again.
    pub redis: bool,
    /// True if Redis can be stopped.
    pub redis_stop: bool,
}

impl Targets {
    /// The kinds that can be done to it.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        let can = |kind: &Kind| match kind {
            Kind::Kill | Kind::Terminate | Kind::Stop => !self.programs.is_empty(),
            Kind::Cut | Kind::Delay | Kind::Swallow | Kind::SwallowAnswers => !self.links.is_empty(),
            Kind::Hold => !self.leases.is_empty(),
            Kind::HoldAnswers => !self.shares.is_empty(),
            Kind::DiskFull => self.disk,
            Kind::RedisKill => self.redis,
            Kind::RedisStop => self.redis_stop,
        };
        Kind::ALL.into_iter().filter(can).collect()
    }
}

/// The faults of a seed, only of `kinds` unless these are none: the same for the same seed, targets and kinds. Each kind has its turn
/// before one comes again.
#[must_use]
pub fn schedule(seed: u64, targets: &Targets, kinds: &[Kind], count: usize) -> Vec<Fault> {
    let mut draw = Draw::new(seed, PURPOSE);
    let mut round: Vec<Kind> = Vec::new();
    let mut faults = Vec::with_capacity(count);
    while faults.len() < count {
        if round.is_empty() {
            round = targets.kinds();
            round.retain(|kind| kinds.is_empty() || kinds.contains(kind));
            if round.is_empty() {
                break;
            }
        }
        let at = usize::try_from(draw.below(round.len() as u64)).unwrap_or_default();
        let kind = round.swap_remove(at);
        let target = match kind {
            Kind::Kill | Kind::Terminate | Kind::Stop => draw.one_of(&targets.programs).clone(),
            Kind::Cut | Kind::Delay | Kind::Swallow | Kind::SwallowAnswers => {
                draw.one_of(&targets.links).clone()
            }
            Kind::Hold => draw.one_of(&targets.leases).clone(),
            Kind::HoldAnswers => draw.one_of(&targets.shares).clone(),
            Kind::DiskFull | Kind::RedisKill | Kind::RedisStop => String::new(),
        };
        let before = Duration::from_millis(draw.between(50, 600));
        let lease = u64::from(LEASE_SECS) * 1000;
        // Shorter than the time after which a process counts as dead, and longer.
        let long = draw.below(4) == 0;
        let lasts = Duration::from_millis(match kind {
            Kind::Hold => lease + draw.between(200, 2_000),
            // Unclaimed work is found within a second and reassigned: about when that happens, and while it is in progress.
            Kind::HoldAnswers => draw.between(600, 2_400),
            _ if long => draw.between(lease - 1_000, lease + 3_000),
            _ => draw.between(50, 1_000),
        });
        faults.push(Fault { kind, target, before, lasts });
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets() -> Targets {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Targets {
            programs: names(&["a", "b"]),
            links: names(&["x", "y"]),
            leases: names(&["y"]),
            shares: names(&["x"]),
            disk: true,
            redis: true,
            redis_stop: true,
        }
    }

    #[test]
    fn a_seed_replays() {
        assert_eq!(schedule(7, &targets(), &[], 50), schedule(7, &targets(), &[], 50));
        assert_ne!(schedule(7, &targets(), &[], 50), schedule(8, &targets(), &[], 50));
        assert_eq!(schedule(7, &targets(), &[], 50)[..20], schedule(7, &targets(), &[], 20));
    }

    #[test]
    fn every_kind_has_its_turn_and_none_that_cannot_be() {
        let kinds = |targets: &Targets, count: usize| {
            let mut kinds: Vec<Kind> =
                schedule(3, targets, &[], count).iter().map(|fault| fault.kind).collect();
            kinds.sort_unstable();
            kinds
        };
        assert_eq!(kinds(&targets(), 12), Kind::ALL);
        let alone = Targets {
            links: Vec::new(),
            leases: Vec::new(),
            shares: Vec::new(),
            disk: false,
            redis: false,
            redis_stop: false,
            ..targets()
        };
        assert_eq!(kinds(&alone, 3), [Kind::Kill, Kind::Terminate, Kind::Stop]);
        assert_eq!(schedule(3, &Targets::default(), &[], 5), []);
        let cuts = schedule(3, &targets(), &[Kind::Cut], 5);
        assert!(cuts.len() == 5 && cuts.iter().all(|fault| fault.kind == Kind::Cut), "{cuts:?}");
    }

    #[test]
    fn a_lease_ends_while_its_link_is_held() {
        let lease = Duration::from_secs(LEASE_SECS.into());
        let held: Vec<Fault> =
            schedule(3, &targets(), &[], 120).into_iter().filter(|fault| fault.kind == Kind::Hold).collect();
        assert_eq!(held.len(), 10);
        assert!(held.iter().all(|fault| fault.target == "y" && fault.lasts > lease), "{held:?}");
    }
}
