//! What is done to a suite, drawn from a seed alone.

use std::time::Duration;

use crate::draw::Draw;

/// Tells what is drawn for the schedule from what is drawn for the load.
const PURPOSE: u64 = 1;

/// What kinds of faults there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A process is killed without a warning, and started again.
    Kill,
    /// A process is asked to end, and started again when it has.
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
    /// The disk is full.
    DiskFull,
    /// Redis is killed without a warning, and started again.
    RedisKill,
    /// Redis is stopped in its tracks, and goes on later.
    RedisStop,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Kill,
        Self::Terminate,
        Self::Stop,
        Self::Cut,
        Self::Delay,
        Self::Swallow,
        Self::SwallowAnswers,
        Self::DiskFull,
        Self::RedisKill,
        Self::RedisStop,
    ];

    /// As tables call it.
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
            Self::DiskFull => "disk full",
            Self::RedisKill => "redis kill -9",
            Self::RedisStop => "redis stopped",
        }
    }
}

/// One thing that goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub kind: Kind,
    /// The process or the link; empty for the disk and Redis.
    pub target: String,
    /// How long the load goes on undisturbed before it.
    pub before: Duration,
    /// How long it lasts.
    pub lasts: Duration,
}

/// What a suite can lose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets {
    /// Processes, by name.
    pub programs: Vec<String>,
    /// Links, by name.
    pub links: Vec<String>,
    /// Whether there is a disk that can be filled.
    pub disk: bool,
    /// Whether Redis can be killed and started again.
    pub redis: bool,
    /// Whether Redis can be stopped.
    pub redis_stop: bool,
}

impl Targets {
    /// The kinds that can be done to it.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        let can = |kind: &Kind| match kind {
            Kind::Kill | Kind::Terminate | Kind::Stop => !self.programs.is_empty(),
            Kind::Cut | Kind::Delay | Kind::Swallow | Kind::SwallowAnswers => !self.links.is_empty(),
            Kind::DiskFull => self.disk,
            Kind::RedisKill => self.redis,
            Kind::RedisStop => self.redis_stop,
        };
        Kind::ALL.into_iter().filter(can).collect()
    }
}

/// The faults of a seed: the same for the same seed and the same targets. Each kind has its turn before one comes again.
#[must_use]
pub fn schedule(seed: u64, targets: &Targets, count: usize) -> Vec<Fault> {
    let mut draw = Draw::new(seed, PURPOSE);
    let mut round: Vec<Kind> = Vec::new();
    let mut faults = Vec::with_capacity(count);
    while faults.len() < count {
        if round.is_empty() {
            round = targets.kinds();
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
            Kind::DiskFull | Kind::RedisKill | Kind::RedisStop => String::new(),
        };
        let before = Duration::from_millis(draw.between(50, 600));
        // Within what nobody takes for a death, and beyond it: leases end after five seconds.
        let lasts = Duration::from_millis(if draw.below(4) == 0 {
            draw.between(4_000, 8_000)
        } else {
            draw.between(50, 1_000)
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
            links: names(&["x"]),
            disk: true,
            redis: true,
            redis_stop: true,
        }
    }

    #[test]
    fn a_seed_replays() {
        assert_eq!(schedule(7, &targets(), 50), schedule(7, &targets(), 50));
        assert_ne!(schedule(7, &targets(), 50), schedule(8, &targets(), 50));
        assert_eq!(schedule(7, &targets(), 50)[..20], schedule(7, &targets(), 20));
    }

    #[test]
    fn every_kind_has_its_turn_and_none_that_cannot_be() {
        let kinds = |targets: &Targets, count: usize| {
            let mut kinds: Vec<Kind> = schedule(3, targets, count).iter().map(|fault| fault.kind).collect();
            kinds.sort_unstable();
            kinds
        };
        assert_eq!(kinds(&targets(), 10), Kind::ALL);
        let alone = Targets { links: Vec::new(), disk: false, redis: false, redis_stop: false, ..targets() };
        assert_eq!(kinds(&alone, 3), [Kind::Kill, Kind::Terminate, Kind::Stop]);
        assert_eq!(schedule(3, &Targets::default(), 5), []);
    }
}
