//! Places where a process can be made to die.

/// Names a place where a process can be made to die: with the feature `crash-points` and
/// `MYCORA_CRASH_AT=name:nth` in the environment the process kills itself, as `kill -9` does, when it comes by for the nth
/// time (the first, without a number). Without the feature it is nothing.
///
/// A crate that has crash points takes this one as an optional dependency behind a feature
/// `crash-points = ["dep:mycora-testkit", "mycora-testkit/crash-points"]` and guards each use with
/// `#[cfg(feature = "crash-points")]`.
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        $crate::crash::reached($name)
    };
}

/// Kills this process when `name` is the place, and this the time, that the environment asks for.
#[cfg(feature = "crash-points")]
pub fn reached(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static ORDER: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static SEEN: AtomicU32 = AtomicU32::new(0);
    let order = ORDER.get_or_init(|| std::env::var("MYCORA_CRASH_AT").ok().and_then(|text| parse(&text)));
    if let Some((place, nth)) = order
        && place == name
        && SEEN.fetch_add(1, Ordering::SeqCst) + 1 == *nth
    {
        eprintln!("crash point {name}: killed at visit {nth}");
        // No handler, destructor or exit hook runs. The signal is there before the call returns.
        let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        unreachable!("a process may always kill itself: {killed:?}");
    }
}

/// Nothing: crash points are compiled in by the feature `crash-points`.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub const fn reached(_name: &str) {}

/// `name` or `name:nth`, counted from 1.
#[cfg(any(test, feature = "crash-points"))]
fn parse(text: &str) -> Option<(String, u32)> {
    match text.rsplit_once(':') {
        None if text.is_empty() => None,
        None => Some((text.to_owned(), 1)),
        Some((name, nth)) => nth.parse().ok().filter(|nth| *nth > 0).map(|nth| (name.to_owned(), nth)),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn orders_are_read() {
        assert_eq!(parse("storage.commit"), Some(("storage.commit".to_owned(), 1)));
        assert_eq!(parse("storage.commit:3"), Some(("storage.commit".to_owned(), 3)));
        for bad in ["", "x:0", "x:y"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        crate::crash_point!("testkit.never");
    }
}
